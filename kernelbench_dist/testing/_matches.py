"""Compare a function with an oracle, within a bound that follows from the dtype."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

__all__ = ["MatchReport", "assert_matches", "linear_oracle"]

Array: TypeAlias = np.ndarray[Any, Any]
ArrayLike: TypeAlias = torch.Tensor | Array | float

_PIECE = 1 << 18  # elements compared at once: 2 MiB for each float64 array that is needed


@dataclass(frozen=True)
class MatchReport:
    """How well a result agrees with the oracle. Errors are absolute, over the finite elements.

    ``worst_*`` belong to the element whose error is largest in proportion to its bound; None where
    the result is empty.
    """

    elements: int
    mismatches: int
    max_abs_error: float
    mean_abs_error: float
    worst_item: int | None = None
    """the rank, where the result is a list"""
    worst_index: tuple[int, ...] | None = None
    worst_result: complex | float | int | None = None
    worst_expected: complex | float | int | None = None
    worst_error: float | None = None
    worst_bound: float | None = None
    worst_ulp: float | None = None
    """worst_error in units of the spacing of the result's dtype at the expected value"""


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
    before = [_digest(t) for t in _tensors(args)]
    result = fn(*args)
    for i, (t, digest) in enumerate(zip(_tensors(args), before, strict=True)):
        if _digest(t) != digest:
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

    tally = _Tally(c)
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
    xs, ws = _float64(x), _float64(weight)
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, here as there
        for rank in range(ranks):
            slice_of_rank = ws[:, rank * features : (rank + 1) * features].T
            expected += xs[rank] @ slice_of_rank
            scale += np.abs(xs[rank]) @ np.abs(slice_of_rank)
        if bias is not None:
            expected += _float64(bias)
            scale += np.abs(_float64(bias))
    return expected, scale


def _tensors(args: Any) -> Iterator[torch.Tensor]:
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, (list, tuple)):
            yield from _tensors(arg)


def _digest(t: torch.Tensor) -> bytes:
    """Of the bits, piece by piece: a copy would need the tensor's own size again."""
    digest = hashlib.blake2b()
    for piece in _pieces(tuple(t.shape), _PIECE):
        part = t.detach()[piece].resolve_conj().resolve_neg().reshape(-1)
        if part.numel():
            flat = part.clone(memory_format=torch.contiguous_format).cpu()
            digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.digest()


def _float64(tensor: torch.Tensor) -> Array:
    return tensor.detach().to("cpu", torch.float64).numpy()


def _numpy(values: Any) -> Array:
    """Exact values of a piece: float64, complex128, int64 or bool as it stands."""
    if isinstance(values, torch.Tensor):
        values = values.detach()
        if values.is_complex():
            return values.to("cpu", torch.complex128).numpy()
        return _float64(values) if values.is_floating_point() else values.cpu().numpy()
    array: Array = np.asarray(values)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


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


class _Tally:
    """Errors summed up piece by piece."""

    def __init__(self, c: float) -> None:
        self.c = c
        self.elements = self.mismatches = self.finite = 0
        self.largest = self.total = 0.0
        self.worst_ratio = -1.0
        self.worst: dict[str, Any] = {}
        self.worst_scale = 0.0
        self.tensor: torch.Tensor | None = None  # the one with the worst element

    def add(self, result: torch.Tensor, expected: Any, scale: Any, item: int | None) -> None:
        shape = tuple(result.shape)
        if isinstance(scale, torch.Tensor):
            scale = scale.expand(shape)
        elif scale is not None:
            scale = np.broadcast_to(np.asarray(scale, dtype=np.float64), shape)
        self.elements += result.numel()
        for piece in _pieces(shape, _PIECE):
            got, want = _numpy(result[piece]), _numpy(expected[piece])
            size = np.abs(want).astype(np.float64) if scale is None else _numpy(scale[piece])
            error, bound = _errors(got, want, size, self.c, result.dtype)
            self.mismatches += int(np.count_nonzero(error > bound))
            measured = error[np.isfinite(error)]
            self.finite += measured.size
            self.total += float(measured.sum())
            self.largest = max(self.largest, float(measured.max(initial=0.0)))

            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.where(error == 0, 0.0, error / bound)
            if ratio.size == 0 or ratio.max() <= self.worst_ratio:
                continue
            at = np.unravel_index(int(ratio.argmax()), ratio.shape)
            self.worst_ratio, self.worst_scale = float(ratio[at]), float(size[at])
            self.tensor = result
            starts = [rows.start or 0 for rows in piece]
            self.worst = {
                "worst_item": item,
                "worst_index": tuple(int(i) + s for i, s in zip(at, starts, strict=True)),
                "worst_result": got[at].item(),
                "worst_expected": want[at].item(),
                "worst_error": float(error[at]),
                "worst_bound": float(bound[at]),
                "worst_ulp": _in_ulp(float(error[at]), abs(want[at]), result.dtype),
            }

    def report(self) -> MatchReport:
        mean = self.total / max(self.finite, 1)
        return MatchReport(self.elements, self.mismatches, self.largest, mean, **self.worst)

    def message(self) -> str:
        report, tensor = self.report(), self.tensor
        assert tensor is not None  # there is a mismatch, and so a worst element
        exact = not (tensor.is_floating_point() or tensor.is_complex())
        item = "" if report.worst_item is None else f"item {report.worst_item}, "
        error = f"{report.worst_error:.3g}"
        if not exact and math.isfinite(report.worst_error or 0.0):
            error += f" = {report.worst_ulp:.7g} ulp, {self.worst_ratio:.2g} times the bound"
        bound = "0: integers and bools must be equal"
        if not exact:
            eps = torch.finfo(tensor.dtype).eps
            parts = f"{self.c:g} * eps {eps:.3g} * scale {self.worst_scale:.3g}"
            bound = f"{report.worst_bound:.3g} = {parts}"
        return (
            f"{self.mismatches} of {self.elements} elements differ from the oracle by more than "
            f"the bound\n"
            f"  worst at    {item}{list(report.worst_index or ())}\n"
            f"  result      {report.worst_result}\n"
            f"  expected    {report.worst_expected}\n"
            f"  error       {error}\n"
            f"  bound       {bound}\n"
            f"  shape {tuple(tensor.shape)}, {tensor.dtype}, {tensor.device}; max abs error "
            f"{self.largest:.3g}, mean abs error {report.mean_abs_error:.3g}"
        )


def _errors(
    got: Array, want: Array, scale: Array, c: float, dtype: torch.dtype
) -> tuple[Array, Array]:
    """The absolute errors and their bounds; an error is infinite where the classes differ."""
    if not (dtype.is_floating_point or dtype.is_complex):
        # int64 does not fit in float64: equality is decided in integers (or by Python's numbers).
        unequal = got != (want if want.dtype.kind != "f" else want.astype(object))
        apart = np.abs(got.astype(np.float64) - want.astype(np.float64))
        # fmax, because the distance to NaN is not a number, and must not pass for one.
        error = np.where(unequal.astype(bool), np.fmax(apart, 1.0), 0.0)
        return error, np.zeros_like(error)
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * info.eps
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(got - want)
        finite = np.isfinite(want)
        if not (np.isfinite(scale) & (scale >= 0) | ~finite).all():
            raise ValueError("the scale must be finite and 0 or more where the expected value is")
        bound = np.where(finite, c * info.eps * scale, 0.0)
        bound = np.where(bound > 0, np.maximum(bound, smallest), bound)
        largest = np.abs(want) + bound
        overflows = np.isinf(got) & finite & (np.sign(got) == np.sign(want))
    same_class = np.isnan(got) & np.isnan(want) | (got == want) & ~finite
    same_class |= overflows & (largest >= _overflow(dtype))
    error = np.where(same_class, 0.0, error)
    return np.where(np.isnan(error), np.inf, error), bound


def _overflow(dtype: torch.dtype) -> float:
    """The smallest value that rounds to infinity: half a spacing above the largest number."""
    info = torch.finfo(dtype)
    top = math.frexp(info.max)[1]  # info.max is just below 2**top
    return info.max + math.ldexp(info.eps, top - 2) if top < 1024 else math.inf


def _in_ulp(error: float, expected: float, dtype: torch.dtype) -> float:
    if not (dtype.is_floating_point or dtype.is_complex):
        return error
    info = torch.finfo(dtype)
    if not math.isfinite(expected):
        return 0.0 if error == 0 else math.inf
    spacing = math.ldexp(info.eps, math.frexp(float(expected))[1] - 1)
    return error / max(spacing, info.smallest_normal * info.eps)


def _pieces(shape: tuple[int, ...], limit: int) -> Iterator[tuple[slice, ...]]:
    """Slices that cut a tensor into blocks of at most ``limit`` elements, without any copy."""
    if math.prod(shape) <= limit:
        yield tuple(slice(None) for _ in shape)
        return
    row = math.prod(shape[1:])
    step = max(1, limit // row)
    for start in range(0, shape[0], step):
        rows = slice(start, min(start + step, shape[0]))
        if row <= limit:
            yield (rows, *(slice(None) for _ in shape[1:]))
        else:
            for inner in _pieces(shape[1:], limit):
                yield (rows, *inner)
