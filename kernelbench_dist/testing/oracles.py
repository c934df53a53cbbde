"""What each rank holds after a collective, by plain loops in float64.

One function for each collective of kernelbench_dist.distributed_collectives, of the same name and
arguments. Each takes a list with the numpy array of each rank, and returns a list with what
each rank holds afterwards, or None for a rank that receives nothing. No code is shared with the
functions these are meant to test, nothing is differentiable, and nothing is fast. Arguments are
taken to be right.

Data that only moves keeps its dtype. Reductions of floats are computed, and come back, in float64
(complex128): compare with a tolerance that the dtype under test allows. Reductions of integers are
computed in Python's unbounded integers and wrap to the dtype at the end; bools stay bools. numpy
has no bfloat16: pass ``t.double().numpy()``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Ranks: TypeAlias = Sequence[Array]

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "gather",
    "permute",
    "reduce",
    "reduce_scatter",
    "replicate",
    "scan",
    "scatter",
    "shift",
]


def all_gather(xs: Ranks, dim: int = 0) -> list[Array]:
    """Every rank holds the ranks' arrays, joined along dim.

    >>> [a.tolist() for a in all_gather([np.array([1, 2]), np.array([3])])]
    [[1, 2, 3], [1, 2, 3]]
    """
    return [_joined(xs, dim) for _ in xs]


def all_reduce(xs: Ranks, op: str = "sum") -> list[Array]:
    """Every rank holds the reduction over ranks, elementwise.

    >>> [a.tolist() for a in all_reduce([np.array([100, 1], np.int8), np.array([28, 1], np.int8)])]
    [[-128, 2], [-128, 2]]
    """
    return [_reduced(xs, op) for _ in xs]


def reduce_scatter(
    xs: Ranks, dim: int = 0, op: str = "sum", sizes: Sequence[int] | None = None
) -> list[Array]:
    """Rank r holds part r of the reduction, cut along dim.

    >>> [a.tolist() for a in reduce_scatter([np.array([1, 2]), np.array([3, 4])])]
    [[4], [6]]
    """
    return _cut(_reduced(xs, op), dim, sizes, len(xs))


def all_to_all(
    xs: Ranks,
    split_dim: int = 0,
    concat_dim: int = 0,
    splits: Sequence[Sequence[int]] | None = None,
) -> list[Array]:
    """Rank r holds part r of every rank, joined along concat_dim.

    >>> [a.tolist() for a in all_to_all([np.array([0, 1]), np.array([10, 11])])]
    [[0, 10], [1, 11]]
    """
    parts = [
        _cut(x, split_dim, None if splits is None else splits[q], len(xs)) for q, x in enumerate(xs)
    ]
    return [_joined([parts[q][r] for q in range(len(xs))], concat_dim) for r in range(len(xs))]


def broadcast(xs: Ranks, src: int = 0) -> list[Array]:
    """Every rank holds src's array.

    >>> [a.tolist() for a in broadcast([np.array([1]), np.array([2])], src=1)]
    [[2], [2]]
    """
    return [xs[src].copy() for _ in xs]


def scatter(
    xs: Ranks, src: int = 0, dim: int = 0, sizes: Sequence[int] | None = None
) -> list[Array]:
    """Rank r holds part r of src's array, cut along dim.

    >>> [a.tolist() for a in scatter([np.array([1, 2]), np.array([3, 4])], src=1)]
    [[3], [4]]
    """
    return _cut(xs[src], dim, sizes, len(xs))


def gather(xs: Ranks, dst: int = 0, dim: int = 0) -> list[Array | None]:
    """Rank dst holds the ranks' arrays, joined along dim.

    >>> gather([np.array([1, 2]), np.array([3])], dst=1)
    [None, array([1, 2, 3])]
    """
    return [_joined(xs, dim) if r == dst else None for r in range(len(xs))]


def reduce(xs: Ranks, dst: int = 0, op: str = "sum") -> list[Array | None]:
    """Rank dst holds the reduction over ranks, elementwise.

    >>> reduce([np.array([1, 2]), np.array([3, 4])], dst=1, op="max")
    [None, array([3, 4])]
    """
    return [_reduced(xs, op) if r == dst else None for r in range(len(xs))]


def permute(xs: Ranks, pairs: Sequence[tuple[int, int]]) -> list[Array]:
    """The destination of each (source, destination) holds the source's array, the others zeros.

    >>> [a.tolist() for a in permute([np.array([1]), np.array([2])], [(0, 1)])]
    [[0], [1]]
    """
    held = [np.zeros_like(x) for x in xs]
    for source, destination in pairs:
        held[destination] = xs[source].copy()
    return held


def shift(xs: Ranks, by: int = 1, wrap: bool = True) -> list[Array]:
    """Rank r holds the array of rank r - by; past the ends, of rank (r - by) mod R or zeros.

    >>> [a.tolist() for a in shift([np.array([1]), np.array([2]), np.array([3])], by=-1)]
    [[2], [3], [1]]
    """
    held = []
    for r in range(len(xs)):
        inside = 0 <= r - by < len(xs)
        held.append(xs[(r - by) % len(xs)].copy() if wrap or inside else np.zeros_like(xs[r]))
    return held


def scan(xs: Ranks, op: str = "sum", exclusive: bool = False) -> list[Array]:
    """Rank r holds the reduction over ranks 0 to r, or 0 to r - 1 if exclusive.

    >>> [a.tolist() for a in scan([np.array([1]), np.array([2]), np.array([3])], exclusive=True)]
    [[0], [1], [3]]
    """
    if not exclusive:
        return [_reduced(xs[: r + 1], op) for r in range(len(xs))]
    first = np.full_like(xs[0], _IDENTITY[op](xs[0].dtype), dtype=_result_dtype(xs[0].dtype))
    return [first, *(_reduced(xs[:r], op) for r in range(1, len(xs)))]


def replicate(x: Array, R: int) -> list[Array]:  # noqa: N803
    """R ranks hold x.

    >>> [a.tolist() for a in replicate(np.array([1]), 2)]
    [[1], [1]]
    """
    return [x.copy() for _ in range(R)]


def _joined(xs: Ranks, dim: int) -> Array:
    """Copies slice after slice: element i of dim is the next one that a rank has."""
    slices = [x.take(i, dim) for x in xs for i in range(x.shape[dim])]
    shape = list(xs[0].shape)
    shape[dim] = len(slices)
    joined = np.empty(shape, xs[0].dtype)
    for i, values in enumerate(slices):
        joined[_at(dim, i, joined.ndim)] = values
    return joined


def _cut(x: Array, dim: int, sizes: Sequence[int] | None, world_size: int) -> list[Array]:
    """R parts along dim, of the sizes or all equal."""
    if sizes is None:
        sizes = [x.shape[dim] // world_size] * world_size
    ends = [sum(sizes[: r + 1]) for r in range(world_size)]
    return [
        x[_at(dim, slice(end - size, end), x.ndim)].copy()
        for size, end in zip(sizes, ends, strict=True)
    ]


def _at(dim: int, where: int | slice, ndim: int) -> tuple[int | slice, ...]:
    index: list[int | slice] = [slice(None)] * ndim
    index[dim] = where
    return tuple(index)


def _reduced(xs: Ranks, op: str) -> Array:
    """Element by element, in Python's own numbers."""
    out = np.empty(xs[0].shape, _result_dtype(xs[0].dtype))
    for index in np.ndindex(xs[0].shape):
        value = _REDUCE[op]([x[index].item() for x in xs])
        out[index] = _wrapped(value, out.dtype)
    return out


def _result_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype({"f": np.float64, "c": np.complex128}.get(dtype.kind, dtype))


def _wrapped(value: Any, dtype: np.dtype[Any]) -> Any:
    """An unbounded integer as the dtype's bits hold it. A sum of bools is or: nonzero is True."""
    if dtype.kind not in "iu":
        return value
    low, count = int(np.iinfo(dtype).min), 1 << (8 * dtype.itemsize)
    return (value - low) % count + low


def _extreme(values: list[Any], wins: Callable[[Any, Any], bool]) -> Any:
    """The first NaN, else the first of the values that no other beats."""
    best = values[0]
    for value in values[1:]:
        if best == best and (value != value or wins(value, best)):
            best = value
    return best


def _fold(values: list[Any], op: Callable[[Any, Any], Any]) -> Any:
    # For sums too: sum() compensates the rounding of floats since Python 3.12.
    total = values[0]
    for value in values[1:]:
        total = op(total, value)
    return total


_REDUCE: dict[str, Callable[[list[Any]], Any]] = {
    "sum": lambda values: _fold(values, lambda a, b: a + b),
    "avg": lambda values: _fold(values, lambda a, b: a + b) / len(values),
    "prod": lambda values: _fold(values, lambda a, b: a * b),
    "min": lambda values: _extreme(values, lambda a, b: a < b),
    "max": lambda values: _extreme(values, lambda a, b: a > b),
    "band": lambda values: _fold(values, lambda a, b: a & b),
    "bor": lambda values: _fold(values, lambda a, b: a | b),
    "bxor": lambda values: _fold(values, lambda a, b: a ^ b),
}


def _limit(dtype: np.dtype[Any], sign: int) -> Any:
    if dtype.kind == "f":
        return sign * math.inf
    if dtype.kind == "b":
        return sign > 0
    return np.iinfo(dtype).max if sign > 0 else np.iinfo(dtype).min


_IDENTITY: dict[str, Callable[[np.dtype[Any]], Any]] = {
    "sum": lambda dtype: 0,
    "prod": lambda dtype: 1,
    "min": lambda dtype: _limit(dtype, +1),
    "max": lambda dtype: _limit(dtype, -1),
    "band": lambda dtype: True if dtype.kind == "b" else _wrapped(-1, dtype),
    "bor": lambda dtype: 0,
    "bxor": lambda dtype: 0,
}
