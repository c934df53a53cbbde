"""Compare a function with an oracle, within a bound that follows from the dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from kernelbench_dist._compare import Array, MatchReport, Tally, digest, float64

__all__ = ["MatchReport", "assert_matches", "linear_oracle"]

ArrayLike: TypeAlias = torch.Tensor | Array | float


def assert_matches(
    fn: Callable[..., Any],
    oracle: Callable[..., Any],
    *args: Any,
    c: float = 4.0,
    scale: ArrayLike | Sequence[ArrayLike] | Callable[..., Any] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> MatchReport:
    """Check that ``fn(*args)`` equals ``oracle(*args)`` within c * eps(dtype) * scale.

    First the result's type, shape, dtype and device must be right, then each element must satisfy
    abs(result - expected) <= c * eps(dtype) * scale, where a bound below the dtype's smallest
    number is raised to that. NaN agrees with NaN alone and an infinity with the same infinity. An
    expected value that, within its bound, is too large for the dtype agrees with the infinity.
    Integers and bools must be equal. Values are compared on the CPU in pieces, so that a large
    result does not need its own size again.

    Args:
        fn: gives a tensor, or a list of tensors (one a rank).
        oracle: gives the exact values: a float64 array of numpy or torch (integers may be of an
            integer dtype), for a list of tensors a list of them. A pair (expected, scale) gives
            the scale too, as `linear_oracle` does.
        args: given to both.
        c: the factor of the bound. One rounding costs 0.5. A long sum of equal signs in one
            running total costs more: about 0.3 * sqrt(terms).
        scale: what the error is in proportion to: an array that broadcasts to the result, a number,
            a list of them for a list of tensors, or a function of ``args`` that gives any of these;
            by default abs(expected). For a sum use the sum of absolute values: terms may cancel.
        dtype: the dtype that the result must have; by default that of the first tensor in args.
        device: the device that the result must be on; by default that of the first tensor in args.

    Returns:
        A `MatchReport`, over all tensors of a list together.

    Raises:
        AssertionError: they differ; it says where most, by how much, and what was allowed. Or fn
            changed its inputs.
        ValueError: c is negative or not finite, or the scale is where the expected value is finite;
            or there is nothing in args to take dtype and device from.

    >>> x = torch.tensor([1.0, 2.0, 3.0])
    >>> assert_matches(torch.sqrt, lambda x: np.sqrt(x.double().numpy()), x).mismatches
    0
    >>> assert_matches(torch.sqrt, lambda x: x.double().numpy() / 2, x)
    Traceback (most recent call last):
        ...
    AssertionError: 3 of 3 elements differ from the oracle by more than the bound
      worst at    [0]
      result      1.0
      expected    0.5
      error       0.5 = 8388608 ulp, 2.1e+06 times the bound
      bound       2.38e-07 = 4 * eps 1.19e-07 * scale 0.5
      shape (3,), torch.float32, cpu; max abs error 0.5, mean abs error 0.382
    """
    first = next(_tensors(args), None)
    if first is not None:
        dtype, device = dtype or first.dtype, device or first.device
    if dtype is None or device is None:
        raise ValueError("args hold no tensor: give dtype= and device= of the result")
    device = torch.device(device)

    if isinstance(c, bool) or not isinstance(c, (int, float)) or not 0 <= c < math.inf:
        raise ValueError(f"c is {c!r}; a finite number of 0 or more is accepted")

    # The oracle first, on inputs that fn has not touched: one that zeroed them would be right.
    expected = oracle(*args)
    before = [digest(t) for t in _tensors(args)]
    result = fn(*args)
    for i, (t, was) in enumerate(zip(_tensors(args), before, strict=True)):
        if digest(t) != was:
            raise AssertionError(f"fn changed its inputs: tensor {i} of args is not as it was")
    is_list = isinstance(result, (list, tuple))
    scales: Any = scale(*args) if callable(scale) else scale
    if isinstance(expected, tuple) and len(expected) == 2 and not is_list:
        expected, given = expected
        scales = given if scales is None else scales
    if not is_list:
        result, expected, scales = [result], [expected], [scales]
    elif not isinstance(expected, (list, tuple)) or len(expected) != len(result):
        count = len(expected) if isinstance(expected, (list, tuple)) else "no list of"
        raise AssertionError(f"a list of {len(result)} results, but {count} expected values")
    elif not isinstance(scales, (list, tuple)):
        scales = [scales] * len(result)

    tally = Tally(c)
    for i, (got, want, size) in enumerate(zip(result, expected, scales, strict=True)):
        want = want if isinstance(want, torch.Tensor) else np.asarray(want)
        _check_kind(got, want, dtype, device, f"item {i}: " if is_list else "")
        tally.add(got.detach(), want, size, i if is_list else None)
    if tally.mismatches:
        raise AssertionError(tally.message())
    return tally.report()


def linear_oracle(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> tuple[Array, Array]:
    """All-gather over ranks + Linear in float64, by a loop over ranks.

    Args:
        x: (R, *b, H), row r is what rank r holds.
        weight: (K, R*H).
        bias: (K,) or none.

    Returns:
        The exact output (*b, K), and its scale for a bound on the error: the same sum over absolute
        values, sum of |x| |w| + |bias|. Both float64.

    >>> x, w = torch.tensor([[[1.0]], [[-2.0]]]), torch.tensor([[3.0, 4.0]])
    >>> expected, scale = linear_oracle(x, w, torch.tensor([0.5]))
    >>> expected.item(), scale.item()
    (-4.5, 11.5)
    """
    ranks, *batch, features = x.shape
    outputs = weight.shape[0]
    expected, scale = np.zeros((*batch, outputs)), np.zeros((*batch, outputs))
    xs, ws = float64(x), float64(weight)
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, here as there
        for rank in range(ranks):
            slice_of_rank = ws[:, rank * features : (rank + 1) * features].T
            expected += xs[rank] @ slice_of_rank
            scale += np.abs(xs[rank]) @ np.abs(slice_of_rank)
        if bias is not None:
            expected += float64(bias)
            scale += np.abs(float64(bias))
    return expected, scale


def _tensors(args: Any) -> Iterator[torch.Tensor]:
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, (list, tuple)):
            yield from _tensors(arg)


def _check_kind(
    result: Any, expected: Any, dtype: torch.dtype, device: torch.device, label: str
) -> None:
    if type(result) is not torch.Tensor:
        raise AssertionError(f"{label}the result must be a torch.Tensor, is a {type(result)}")
    shape = tuple(expected.shape)
    wrong = []
    if tuple(result.shape) != shape:
        wrong.append(f"shape {tuple(result.shape)}, expected {shape}")
    if result.dtype != dtype:
        wrong.append(f"dtype {result.dtype}, expected {dtype}")
    if result.device.type != device.type or device.index not in (None, result.device.index):
        wrong.append(f"device {result.device}, expected {device}")
    if wrong:
        raise AssertionError(f"{label}the result has {'; '.join(wrong)}")
