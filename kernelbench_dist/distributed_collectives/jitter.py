"""Sizes that vary from trial to trial, so that no kernel can be written for one shape only.

Every draw comes from the given CPU or CUDA ``generator``, else from torch's global CPU generator:
``torch.manual_seed`` governs it. Draws are exactly uniform, and a draw from a range of one size
uses no random number.

Ratios are read as the decimal that a person wrote: 100 * 1.1 is 110 here, although in binary
floating point it is a little more and would round up to 111.
"""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from typing import SupportsFloat

import torch

__all__ = ["MODES", "jitter_int", "sample_input_mode", "trial_dim", "trial_int"]

MODES = ("large_band", "awkward", "wide")
"""The ways in which `trial_dim` varies a size."""

_RATIOS = {"large_band": (0.9, 1.1), "wide": (0.8, 1.2)}
_BITS = 62  # one draw of torch.randint below: its exclusive bound must fit in an int64


class NoMultipleError(ValueError):
    """No multiple of align lies in the range; ``nearest`` is the one that comes closest.

    That is the multiple nearest to the nominal size among those not below ``minimum``; of two
    equally near, the larger.
    """

    def __init__(self, message: str, nearest: int) -> None:
        super().__init__(message)
        self.nearest = nearest


def trial_int(low: int, high: int, *, generator: torch.Generator | None = None) -> int:
    """A uniform integer from low to high, both inclusive.

    Raises:
        TypeError: if low or high is not an integer.
        ValueError: if low > high, or the range holds more than 2**62 integers.

    >>> trial_int(3, 3)
    3
    >>> g = torch.Generator().manual_seed(0)
    >>> all(1 <= trial_int(1, 6, generator=g) <= 6 for _ in range(100))
    True
    """
    low, high = _integer("low", low), _integer("high", high)
    if low > high:
        raise ValueError(f"low={low} must not be above high={high}")
    count = high - low + 1
    if count == 1:
        return low
    if count > 2**_BITS:
        raise ValueError(f"low={low} to high={high} holds more than 2**{_BITS} integers")
    # The device is said outright: a default device set by the caller must not move the draw.
    device = torch.device("cpu") if generator is None else generator.device
    while True:  # rejection, because a bare remainder would favour small values
        bits = int(torch.randint(2**_BITS, (), generator=generator, device=device))
        if bits < 2**_BITS // count * count:
            return low + bits % count


def jitter_int(
    default: int,
    *,
    min_ratio: SupportsFloat = 0.85,
    max_ratio: SupportsFloat = 1.15,
    minimum: int = 1,
    align: int = 1,
    generator: torch.Generator | None = None,
) -> int:
    """A size near a nominal one: a uniform multiple of ``align`` in a range of ratios.

    The range is [max(minimum, floor(default * min_ratio)), ceil(default * max_ratio)].

    Args:
        default: the nominal size, 0 or more.
        min_ratio: lower end of the range as a share of ``default``, 0 or more.
        max_ratio: upper end, at least ``min_ratio``.
        minimum: the smallest size allowed, 0 or more.
        align: the result is a multiple of this, 1 or more.

    Raises:
        TypeError: if an argument is not a number of the right kind.
        ValueError: if an argument is out of its range, or if no multiple of ``align`` lies between
            the ends.

    >>> g = torch.Generator().manual_seed(0)
    >>> sorted({jitter_int(12, generator=g) for _ in range(100)})  # floor(10.2) to ceil(13.8)
    [10, 11, 12, 13, 14]
    >>> sorted({jitter_int(48, align=8, generator=g) for _ in range(100)})
    [40, 48, 56]
    >>> jitter_int(4, align=8)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    kernelbench_dist.distributed_collectives.jitter.NoMultipleError: no multiple of align=8 lies ...
    """
    default, minimum, align = _sizes("default", default, minimum, align)
    ratio_low, ratio_high = _ratios(min_ratio, max_ratio)
    low = max(minimum, math.floor(default * ratio_low))
    high = math.ceil(default * ratio_high)
    first, last = -(-low // align), high // align  # in units of align
    if first > last:
        raise NoMultipleError(
            f"no multiple of align={align} lies in [{low}, {high}] (default={default}, "
            f"min_ratio={min_ratio}, max_ratio={max_ratio}, minimum={minimum})",
            _nearest_multiple(default, minimum, align),
        )
    return align * trial_int(first, last, generator=generator)


def sample_input_mode(*, generator: torch.Generator | None = None) -> str:
    """One of `MODES` for the inputs of one trial.

    "large_band" 6 times in 10, "awkward" 3 times and "wide" once. Draw it once a trial and give it
    to every `trial_dim` of that trial.

    >>> sample_input_mode() in MODES
    True
    """
    draw = trial_int(0, 9, generator=generator)
    return "large_band" if draw < 6 else "awkward" if draw < 9 else "wide"


def trial_dim(
    center: int,
    name: str = "",
    *,
    mode: str | None = None,
    min_ratio: SupportsFloat | None = None,
    max_ratio: SupportsFloat | None = None,
    minimum: int = 1,
    align: int = 1,
    generator: torch.Generator | None = None,
) -> int:
    """The size of one dimension in one trial.

    =========== ===================================================================================
    mode        result
    =========== ===================================================================================
    large_band  `jitter_int` with the ratios 0.9 to 1.1
    wide        `jitter_int` with the ratios 0.8 to 1.2
    awkward     the next odd size above ``center``; with ``align``, the next odd multiple of it. Not
                below ``minimum``. Ratios have no say here
    =========== ===================================================================================

    Args:
        center: the nominal size, 0 or more.
        name: the dimension's name, used in messages.
        mode: one of `MODES`; None draws one by `sample_input_mode`.
        min_ratio: in place of the mode's own lower ratio.
        max_ratio: in place of the mode's own upper ratio.
        minimum: the smallest size allowed, 0 or more.
        align: the result is a multiple of this, 1 or more.

    Raises:
        TypeError, ValueError: as `jitter_int`, with the dimension's name in front; ValueError for
            an unknown mode.

    >>> trial_dim(12, "B", mode="awkward"), trial_dim(48, "D", mode="awkward", align=8)
    (13, 56)
    >>> 90 <= trial_dim(100, "B", mode="large_band") <= 110
    True
    """
    label = f"dimension {name!r}: " if name else ""
    if mode is not None and mode not in MODES:
        raise ValueError(f"{label}mode={mode!r} is not one of {', '.join(MODES)}")
    if mode is None:
        mode = sample_input_mode(generator=generator)
    own = _RATIOS["wide" if mode == "awkward" else mode]
    low = own[0] if min_ratio is None else min_ratio
    high = own[1] if max_ratio is None else max_ratio
    try:
        # Here, and so in every mode: a bad call must not fail in some trials only.
        center, minimum, align = _sizes("center", center, minimum, align)
        _ratios(low, high)
        if mode == "awkward":
            units = max(center // align + 1, -(-minimum // align))
            return align * (units | 1)
        return jitter_int(
            center,
            min_ratio=low,
            max_ratio=high,
            minimum=minimum,
            align=align,
            generator=generator,
        )
    except NoMultipleError as error:
        raise NoMultipleError(f"{label}{error}", error.nearest) from None
    except (TypeError, ValueError) as error:
        raise type(error)(f"{label}{error}") from None


def _sizes(label: str, size: int, minimum: int, align: int) -> tuple[int, int, int]:
    return _integer(label, size, 0), _integer("minimum", minimum, 0), _integer("align", align, 1)


def _ratios(min_ratio: SupportsFloat, max_ratio: SupportsFloat) -> tuple[Fraction, Fraction]:
    low, high = _ratio("min_ratio", min_ratio), _ratio("max_ratio", max_ratio)
    if low > high:
        raise ValueError(f"min_ratio={min_ratio} must not be above max_ratio={max_ratio}")
    return low, high


def _integer(name: str, value: int, lowest: int | None = None) -> int:
    # bool is an int in Python, but trial_int(False, True) is a slip of the pen, not a range.
    try:
        if isinstance(value, bool):
            raise TypeError
        value = operator.index(value)
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"{name}={value!r} must be an integer, not {kind}") from None
    if lowest is not None and value < lowest:
        raise ValueError(f"{name}={value} must be {lowest} or more")
    return value


def _ratio(name: str, value: SupportsFloat) -> Fraction:
    """The ratio as the decimal that a person wrote: repr gives the shortest one that reads back."""
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        raise TypeError(f"{name}={value!r} must be a number, not {type(value).__name__}")
    ratio = float(value)
    if not math.isfinite(ratio) or ratio < 0:
        raise ValueError(f"{name}={value} must be finite and 0 or more")
    return value if isinstance(value, Fraction) else Fraction(repr(ratio))


def _nearest_multiple(default: int, minimum: int, align: int) -> int:
    below = default // align * align
    smallest = -(-minimum // align) * align
    nearest = below if default - below < below + align - default else below + align
    return max(nearest, smallest)
