"""What a reference's answers are exactly, and how far from them a right answer may lie.

For use in the reference's worker. A bound for every element comes from three runs of the reference:

- in float64: the exact answer y;
- in float64 again on inputs and parameters that are moved by at most an eps of the judged dtype,
  a few times: how far y moves is what rounding of that element costs, s;
- in the judged dtype: its error, in units of eps * abs(y) + s, is at most k over all elements.

An answer is right where its error is at most 2 * max(k, k0) * (eps * abs(y) + s): no worse than
twice the reference's own error, in proportion to each element's own conditioning. k0 is for honest
work in another order than the reference's: 2 where sums are rounded once at the end (16 bits), and
128 in float32 and float64, where a plain loop over n terms is off by about sqrt(n) / 4. TF32 in
place of float32, or float32 in place of float64, costs thousands. Integers and bools must be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

_MOVES = 4
_MOST_ELEMENTS_FOR_ALL_MOVES = 1 << 24
_SLACK = 2.0
_LEAST_FACTOR = {torch.float16: 2.0, torch.bfloat16: 2.0}
_LEAST_FACTOR_WIDE = 128.0
# A move can turn a comparison over and with it an output that is an index, say. What rounding
# costs is then not to be seen so: s is capped at this many eps of the largest value.
_CAP_EPS = 64.0
NO_BOUND = 1e280
"""Any answer stands. A bound must be finite, also in units of float64's eps."""

Run = Callable[[], Sequence[torch.Tensor]]


def bounds(
    exact: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    moved: Callable[[], Sequence[torch.Tensor]],
) -> list[torch.Tensor]:
    """The allowed error of every element: float64 tensors of the outputs' shapes.

    Args:
        exact: the reference's outputs in float64.
        eager: in the dtype that is judged; its dtype decides eps.
        moved: runs the float64 reference once more, on inputs moved anew.
    """
    spread = [torch.zeros_like(y, dtype=torch.float64) for y in map(_magnitude, exact)]
    count = sum(y.numel() for y in exact)
    moves = _MOVES if count <= _MOST_ELEMENTS_FOR_ALL_MOVES else 1
    if any(_is_rounded(t) for t in eager):
        for _ in range(moves):
            for total, y, other in zip(spread, exact, moved(), strict=True):
                if other.shape == y.shape:
                    total += _finite(other.to(y.dtype) - y).square()
    return [
        _bound(y, t, (total / moves).sqrt())
        for y, t, total in zip(exact, eager, spread, strict=True)
    ]


def _bound(exact: torch.Tensor, eager: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
    if not _is_rounded(eager):
        return torch.zeros_like(spread)
    eps = torch.finfo(eager.dtype).eps
    size = _finite(exact)
    raw = (eager.to(exact.dtype) - exact).abs()
    known = torch.isfinite(raw)
    error = torch.where(known, raw, torch.zeros_like(raw)).to(torch.float64)
    largest = max(_largest(size), _largest(error) / eps)
    spread = spread.clamp(max=_CAP_EPS * eps * largest)
    # So that an element whose moves happened to cancel does not count as exact.
    unit = eps * size + spread + 0.1 * spread.mean() if spread.numel() else spread
    tiny = torch.finfo(eager.dtype).smallest_normal * eps
    least = _LEAST_FACTOR.get(eager.dtype, _LEAST_FACTOR_WIDE)
    factor = max(_largest(error / unit.clamp(min=tiny)), least)
    # Sums of subnormal numbers lose their least digits at each step.
    bound = _SLACK * factor * torch.where(unit > 0, unit.clamp(min=tiny), unit)
    # Where the reference itself overflows, or makes NaN of what overflowed, any answer stands.
    agrees = (eager == exact) | (torch.isnan(eager) & torch.isnan(exact))
    return torch.where(~known & ~agrees, NO_BOUND, bound)


def move(tensor: torch.Tensor, eps: float, generator: torch.Generator) -> torch.Tensor:
    """The tensor with every element multiplied by 1 + eps * u, u uniform in [-1, 1)."""
    u = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) * 2 - 1
    return tensor * (1 + eps * u.to(tensor.device))


def _is_rounded(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _magnitude(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.abs() if tensor.dtype != torch.bool else tensor


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    size = tensor.abs().to(torch.float64)
    return torch.where(torch.isfinite(size), size, torch.zeros_like(size))


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.max()) if tensor.numel() else 0.0
