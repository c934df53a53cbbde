"""Values compared with exact ones, in pieces: what `testing` and `harness` share."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

Array: TypeAlias = np.ndarray[Any, Any]

PIECE = 1 << 18
"""Elements compared at once: 2 MiB for each float64 array that is needed."""


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
    max_rel_error: float = 0.0
    """over the elements whose expected value is not 0"""
    worst_item: int | None = None
    """the rank, where the result is a list"""
    worst_index: tuple[int, ...] | None = None
    worst_result: complex | float | int | None = None
    worst_expected: complex | float | int | None = None
    worst_error: float | None = None
    worst_bound: float | None = None
    worst_ulp: float | None = None
    """worst_error in units of the spacing of the result's dtype at the expected value"""


def digest(t: torch.Tensor) -> bytes:
    """Of the bits, piece by piece: a copy would need the tensor's own size again."""
    whole = hashlib.blake2b()
    for piece in pieces(tuple(t.shape), PIECE):
        part = t.detach()[piece].resolve_conj().resolve_neg().reshape(-1)
        if part.numel():
            flat = part.clone(memory_format=torch.contiguous_format).cpu()
            whole.update(flat.view(torch.uint8).numpy().tobytes())
    return whole.digest()


def float64(tensor: torch.Tensor) -> Array:
    return tensor.detach().to("cpu", torch.float64).numpy()


def exact_array(values: Any) -> Array:
    """Exact values of a piece: float64, complex128, int64 or bool as it stands."""
    if isinstance(values, torch.Tensor):
        values = values.detach()
        if values.is_complex():
            return values.to("cpu", torch.complex128).numpy()
        return float64(values) if values.is_floating_point() else values.cpu().numpy()
    array: Array = np.asarray(values)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


class Tally:
    """Errors summed up piece by piece."""

    def __init__(self, c: float) -> None:
        self.c = c
        self.elements = self.mismatches = self.finite = 0
        self.largest = self.largest_rel = self.total = 0.0
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
        for piece in pieces(shape, PIECE):
            got, want = exact_array(result[piece]), exact_array(expected[piece])
            size = np.abs(want).astype(np.float64) if scale is None else exact_array(scale[piece])
            error, bound = errors(got, want, size, self.c, result.dtype)
            self.mismatches += int(np.count_nonzero(error > bound))
            measured = error[np.isfinite(error)]
            self.finite += measured.size
            self.total += float(measured.sum())
            self.largest = max(self.largest, float(measured.max(initial=0.0)))
            relative = np.isfinite(error) & np.isfinite(want) & (want != 0)
            share = error[relative] / np.abs(want[relative]).astype(np.float64)
            self.largest_rel = max(self.largest_rel, float(share.max(initial=0.0)))

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
        return MatchReport(
            self.elements, self.mismatches, self.largest, mean, self.largest_rel, **self.worst
        )

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


def errors(
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


def pieces(shape: tuple[int, ...], limit: int) -> Iterator[tuple[slice, ...]]:
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
            for inner in pieces(shape[1:], limit):
                yield (rows, *inner)
