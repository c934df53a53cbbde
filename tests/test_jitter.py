"""The jitter helpers: what they may return, each of it equally often, and what they refuse.

Expected ranges are found by counting through the integers with decimal arithmetic.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kernelbench_dist.distributed_collectives import jitter
from kernelbench_dist.distributed_collectives.jitter import (
    jitter_int,
    sample_input_mode,
    trial_dim,
    trial_int,
)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def allowed(default: int, low: str, high: str, minimum: int = 1, align: int = 1) -> list[int]:
    """Multiples of align from max(minimum, floor(default * low)) to ceil(default * high)."""
    exact_low, exact_high = default * Decimal(low), default * Decimal(high)
    return [
        size
        for size in range(minimum, default * 3 + 2)
        if size % align == 0 and size + 1 > exact_low and size - 1 < exact_high
    ]


def assert_uniform(draw: Callable[[], int], values: list[int], draws: int = 3000) -> None:
    """Chi-square with a bound far in the tail: 1 of 1e6 honest runs; the seeds are fixed anyway."""
    counts = Counter(draw() for _ in range(draws))
    assert set(counts) <= set(values)
    each = draws / len(values)
    assert each >= 20, "too few draws for the test to mean anything"
    chi2 = sum((counts[value] - each) ** 2 / each for value in values)
    freedom = len(values) - 1
    z = ((chi2 / freedom) ** (1 / 3) - 1 + 2 / (9 * freedom)) / (2 / (9 * freedom)) ** 0.5
    assert z < 4.75, counts  # Wilson and Hilferty: the cube root is close to normal


def test_the_uniformity_check_can_fail() -> None:
    g = seeded(0)
    with pytest.raises(AssertionError):  # the sum of two dice
        assert_uniform(
            lambda: trial_int(1, 6, generator=g) + trial_int(1, 6, generator=g), list(range(2, 13))
        )
    with pytest.raises(AssertionError):  # an end left out
        assert_uniform(lambda: trial_int(0, 8, generator=g), list(range(10)))


@given(low=st.integers(-(2**70), 2**70), span=st.integers(0, 2**62 - 1), seed=st.integers(0, 99))
@example(low=0, span=0, seed=0)
@example(low=-5, span=2**62 - 1, seed=1)
def test_trial_int_stays_inside(low: int, span: int, seed: int) -> None:
    value = trial_int(low, low + span, generator=seeded(seed))
    assert type(value) is int
    assert low <= value <= low + span


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 3), (10, 59), (7, 16)])
def test_trial_int_is_uniform(low: int, high: int) -> None:
    g = seeded(low + 100)
    assert_uniform(lambda: trial_int(low, high, generator=g), list(range(low, high + 1)))


def test_trial_int_is_uniform_over_a_huge_range() -> None:
    g = seeded(3)
    third = 2**60  # of 3 * 2**60: a bare remainder of 62 bits would give the first third twice
    assert_uniform(lambda: trial_int(0, 3 * third - 1, generator=g) // third, [0, 1, 2])


@given(
    default=st.integers(0, 300),
    low=st.integers(0, 120),
    extra=st.integers(0, 60),
    minimum=st.integers(0, 40),
    align=st.integers(1, 48),
    seed=st.integers(0, 2**31),
)
@example(default=4, low=85, extra=30, minimum=1, align=8, seed=0)
@example(default=0, low=85, extra=30, minimum=0, align=1, seed=0)
def test_jitter_int_and_its_nearest_multiple(
    default: int, low: int, extra: int, minimum: int, align: int, seed: int
) -> None:
    low_text, high_text = f"{low / 100:.2f}", f"{(low + extra) / 100:.2f}"
    options: dict[str, Any] = {
        "min_ratio": float(low_text),
        "max_ratio": float(high_text),
        "minimum": minimum,
        "align": align,
    }
    values = allowed(default, low_text, high_text, minimum, align)
    if values:
        value = jitter_int(default, generator=seeded(seed), **options)
        assert type(value) is int
        assert value in values
        return
    with pytest.raises(ValueError) as caught:
        jitter_int(default, **options)
    for name, given_value in {"default": default, **options}.items():
        assert f"{name}={given_value}" in str(caught.value)
    # What the loader of original problem files takes then. Counted through, upwards from minimum.
    multiples = [m for m in range(minimum, default + minimum + 2 * align) if m % align == 0]
    best = min(multiples, key=lambda m: (abs(m - default), -m))
    assert isinstance(caught.value, jitter.NoMultipleError)
    assert caught.value.nearest == best


@pytest.mark.parametrize(
    ("default", "options", "values"),
    [
        (12, {}, [10, 11, 12, 13, 14]),
        (48, {"align": 8}, [40, 48, 56]),
        (100, {"align": 5, "max_ratio": 1.1, "min_ratio": 0.9}, [90, 95, 100, 105, 110]),
        (10, {"minimum": 10}, [10, 11, 12]),
        (6, {"min_ratio": 0, "max_ratio": Fraction(1, 3), "minimum": 0}, [0, 1, 2]),
    ],
)
def test_jitter_int_is_uniform_over_all_of_its_range(
    default: int, options: dict[str, Any], values: list[int]
) -> None:
    g = seeded(default)
    assert_uniform(lambda: jitter_int(default, generator=g, **options), values)


@pytest.mark.parametrize(
    ("default", "ratio", "binary", "decimal"),
    [
        (100, 1.1, 111, 110),  # 100 * 1.1 = 110.00000000000001
        (200, 1.1, 221, 220),
    ],
)
def test_ends_are_decimal(default: int, ratio: float, binary: int, decimal: int) -> None:
    assert math.ceil(default * ratio) == binary  # or the case would show nothing
    assert jitter_int(default, min_ratio=ratio, max_ratio=ratio, align=decimal) == decimal
    with pytest.raises(ValueError, match=re.escape(f"[{decimal}, {decimal}]")):
        jitter_int(default, min_ratio=ratio, max_ratio=ratio, align=binary)


def test_lower_end_is_decimal() -> None:
    assert int(100 * 0.29) == 28  # 28.999999999999996
    assert jitter_int(100, min_ratio=0.29, max_ratio=0.29) == 29


def test_manual_seed_governs_the_draws_and_a_generator_leaves_the_global_state_alone() -> None:
    def draws(generator: torch.Generator | None = None) -> list[Any]:
        sizes = [jitter_int(1000, generator=generator) for _ in range(20)]
        modes = [sample_input_mode(generator=generator) for _ in range(20)]
        return [sizes, modes, [trial_dim(1000, generator=generator) for _ in range(20)]]

    torch.manual_seed(5)
    first = draws()
    torch.manual_seed(5)
    assert draws() == first
    assert draws() != first
    before = torch.get_rng_state()
    mine = draws(seeded(5))
    assert mine == draws(seeded(5))
    assert mine != draws(seeded(6))
    assert torch.equal(torch.get_rng_state(), before)
    assert mine == first  # one seed, one stream


def test_a_default_device_does_not_move_the_draw() -> None:
    torch.manual_seed(1)
    plain = trial_int(0, 10**6)
    torch.manual_seed(1)
    with torch.device("meta"):  # a draw there would have no value
        assert trial_int(0, 10**6) == plain


def test_modes_come_in_their_shares() -> None:
    g = seeded(11)
    counts = Counter(sample_input_mode(generator=g) for _ in range(5000))
    assert set(counts) == {"large_band", "awkward", "wide"}
    # Shares 0.6, 0.3, 0.1; five standard deviations of a count are at most 175.
    for mode, share in {"large_band": 3000, "awkward": 1500, "wide": 500}.items():
        assert abs(counts[mode] - share) < 175


@pytest.mark.parametrize(
    ("mode", "low", "high"), [("large_band", "0.9", "1.1"), ("wide", "0.8", "1.2")]
)
def test_trial_dim_bands(mode: str, low: str, high: str) -> None:
    g = seeded(2)
    for center, align in [(50, 1), (64, 4)]:
        values = allowed(center, low, high, align=align)
        assert_uniform(lambda: trial_dim(center, mode=mode, align=align, generator=g), values)  # noqa: B023


@given(center=st.integers(0, 500), align=st.integers(1, 33), minimum=st.integers(0, 600))
def test_awkward_is_the_next_odd_size(center: int, align: int, minimum: int) -> None:
    size = center + 1
    while size < minimum or size % align or (size // align) % 2 == 0:
        size += 1
    assert trial_dim(center, mode="awkward", align=align, minimum=minimum) == size


@pytest.mark.parametrize(("center", "size"), [(0, 1), (12, 13), (13, 15), (56, 57)])
def test_awkward_by_hand(center: int, size: int) -> None:
    assert trial_dim(center, "B", mode="awkward") == size


def test_trial_dim_draws_its_own_mode() -> None:
    g = seeded(4)
    sizes = {trial_dim(100, generator=g) for _ in range(500)}
    assert sizes <= set(range(80, 121))
    assert 101 in sizes
    assert min(sizes) < 90  # only the wide mode goes there


def test_trial_dim_ratios_replace_the_modes_own() -> None:
    g = seeded(5)
    draw = lambda: trial_dim(  # noqa: E731
        10, mode="wide", min_ratio=1.0, max_ratio=1.5, generator=g
    )
    assert_uniform(draw, [10, 11, 12, 13, 14, 15])
    assert trial_dim(10, mode="awkward", min_ratio=1.0, max_ratio=5.0) == 11


def test_integers_of_numpy_are_taken() -> None:
    assert jitter_int(np.int64(8), min_ratio=np.float32(0.5), max_ratio=0.5) == 4
    assert trial_int(np.int32(3), np.int64(3)) == 3


BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: trial_int(5, 3), ValueError, "low=5 must not be above high=3"),
    (lambda: trial_int(0, 2**62), ValueError, "2**62"),
    (lambda: trial_int(1.5, 3), TypeError, "low=1.5 must be an integer, not float"),
    (lambda: trial_int(0, "9"), TypeError, "high='9' must be an integer, not str"),
    (lambda: trial_int(False, 3), TypeError, "low=False"),
    (lambda: jitter_int(-1), ValueError, "default=-1 must be 0 or more"),
    (lambda: jitter_int(12.0), TypeError, "default=12.0 must be an integer"),
    (lambda: jitter_int(12, align=0), ValueError, "align=0 must be 1 or more"),
    (lambda: jitter_int(12, minimum=-2), ValueError, "minimum=-2 must be 0 or more"),
    (lambda: jitter_int(12, min_ratio=1.2, max_ratio=1.1), ValueError,
     "min_ratio=1.2 must not be above max_ratio=1.1"),
    (lambda: jitter_int(12, min_ratio=-0.1), ValueError, "min_ratio=-0.1 must be finite"),
    (lambda: jitter_int(12, max_ratio=float("nan")), ValueError, "max_ratio=nan must be finite"),
    (lambda: jitter_int(12, max_ratio=float("inf")), ValueError, "max_ratio=inf must be finite"),
    (lambda: jitter_int(12, min_ratio="0.9"), TypeError, "min_ratio='0.9' must be a number"),
    (lambda: jitter_int(12, minimum=20), ValueError, "lies in [20, 14]"),
    (lambda: trial_dim(12, mode="odd"), ValueError,
     "mode='odd' is not one of large_band, awkward, wide"),
    (lambda: trial_dim(-1, "B"), ValueError, "dimension 'B': center=-1 must be 0 or more"),
    (lambda: trial_dim(4, "R", mode="wide", align=8), ValueError,
     "dimension 'R': no multiple of align=8 lies in [3, 5]"),
    (lambda: trial_dim(4, "R", mode="awkward", min_ratio=2.0), ValueError,
     "dimension 'R': min_ratio=2.0 must not be above"),
    (lambda: trial_dim("x", mode="awkward"), TypeError, "center='x' must be an integer"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "says"), BAD, ids=[says for _, _, says in BAD])
def test_bad_arguments(call: Callable[[], object], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=re.escape(says)):
        call()
