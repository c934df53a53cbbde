"""Argument checks of the stacked collectives.

The checks are plain Python on types, shapes, dtypes and devices. They look at no value of a tensor,
so they cost no device synchronisation and torch.compile traces through them without a graph break.

Every message starts with the function's name and says which rank has what, and what is accepted.
A wrong kind of argument and ranks that disagree in dtype or device are TypeErrors; shapes, sizes,
ranks and dims are ValueErrors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

# What every collective takes: one tensor (R, *s), or a list with the tensor of each rank.
Stacked: TypeAlias = Tensor | Sequence[Tensor]


def as_ranks(fn: str, x: Stacked) -> Sequence[Tensor]:
    """The tensors of ranks 0 to R-1: views of a stacked tensor, or the list as it is."""
    if isinstance(x, Tensor):
        _check_dense(fn, "x", x)
        if x.dim() == 0:
            raise ValueError(
                f"{fn}: x is a scalar; a stacked tensor has shape (R, ...), row r being rank r's"
            )
        if x.size(0) == 0:
            raise ValueError(f"{fn}: x has shape {_shape(x)}, 0 ranks; it takes at least 1")
        return x.unbind(0)
    return check_list(fn, x, "x must be a stacked tensor (R, ...) or a list of R tensors")


def check_list(fn: str, xs: Any, accepted: str) -> Sequence[Tensor]:
    """A list with one tensor a rank, all of one dtype on one device."""
    if not isinstance(xs, list | tuple):
        raise TypeError(f"{fn}: {accepted}, got {_kind(xs)}")
    if not xs:
        raise ValueError(f"{fn}: the list is empty, 0 ranks; it takes at least 1 tensor")
    for r, t in enumerate(xs):
        if not isinstance(t, Tensor):
            raise TypeError(f"{fn}: rank {r} must be a tensor, got {_kind(t)}")
        _check_dense(fn, f"rank {r}", t)
        if t.dtype != xs[0].dtype:
            raise TypeError(
                f"{fn}: rank {r} has dtype {t.dtype} and rank 0 has {xs[0].dtype}; "
                "all ranks must have one dtype"
            )
        if t.device != xs[0].device:
            raise TypeError(
                f"{fn}: rank {r} is on {t.device} and rank 0 on {xs[0].device}; "
                "all ranks must be on one device"
            )
    return xs


def check_tensor(fn: str, x: Any) -> Tensor:
    """One dense tensor, where a list is not taken."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{fn}: x must be a tensor, got {_kind(x)}")
    _check_dense(fn, "x", x)
    return x


def check_same_shape(fn: str, xs: Sequence[Tensor]) -> None:
    for r, t in enumerate(xs):
        if t.shape != xs[0].shape:
            raise ValueError(
                f"{fn}: rank {r} has shape {_shape(t)} and rank 0 has {_shape(xs[0])}; "
                "all ranks must have one shape"
            )


def check_same_outside(fn: str, xs: Sequence[Tensor], dim: int) -> None:
    """Ranks that are joined along dim may differ there and nowhere else.

    torch.cat would check this too, without naming a rank, but it skips tensors of shape (0,)
    whatever the shape of the others.
    """
    for r, t in enumerate(xs):
        if _without(t.shape, dim) != _without(xs[0].shape, dim):
            raise ValueError(
                f"{fn}: rank {r} has shape {_shape(t)} and rank 0 has {_shape(xs[0])}; "
                f"ranks may differ along dim {dim} only"
            )


def check_dim(fn: str, name: str, dim: Any, t: Tensor) -> int:
    """A dim of t, the tensor of one rank, as a number from 0."""
    check_int(fn, name, dim)
    n = t.dim()
    if n == 0:
        raise ValueError(
            f"{fn}: {name}={dim}, but each rank holds a scalar, which has no dims; "
            "give it one with x.unsqueeze(1), or stack a list of scalars with join(xs)"
        )
    if not -n <= dim < n:
        raise ValueError(
            f"{fn}: {name}={dim} is out of range for shape {_shape(t)} of one rank; "
            f"it takes {-n} to {n - 1}"
        )
    return dim % n


def check_rank(fn: str, name: str, rank: Any, world_size: int) -> None:
    check_int(fn, name, rank)
    if not 0 <= rank < world_size:
        raise ValueError(f"{fn}: {name}={rank} is not a rank; it takes 0 to {world_size - 1}")


def check_int(fn: str, name: str, value: Any) -> None:
    # bool is an int in Python. A SymInt is a size while a graph with dynamic shapes is traced.
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt):
        raise TypeError(f"{fn}: {name} must be an int, got {_kind(value)}")


def check_bool(fn: str, name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{fn}: {name} must be a bool, got {_kind(value)}")


def check_world_size(fn: str, world_size: Any) -> None:
    check_int(fn, "R", world_size)
    if world_size < 1:
        raise ValueError(f"{fn}: R={world_size}; it takes at least 1 rank")


def part_sizes(
    fn: str, name: str, sizes: Any, xs: Sequence[Tensor], rank: int, dim: int
) -> list[int]:
    """The sizes of the R parts in which a rank's tensor is cut along dim: equal, or as given."""
    world_size, t = len(xs), xs[rank]
    if sizes is None:
        if t.size(dim) % world_size:
            raise ValueError(
                f"{fn}: dim {dim} of rank {rank}'s shape {_shape(t)} cannot be cut into "
                f"{world_size} equal parts; give {name}, {world_size} ints that sum to it"
            )
        return [t.size(dim) // world_size] * world_size
    if not isinstance(sizes, list | tuple):
        raise TypeError(f"{fn}: {name} must be a list of {world_size} ints, got {_kind(sizes)}")
    if len(sizes) != world_size:
        raise ValueError(
            f"{fn}: {name}={list(sizes)} has length {len(sizes)}; it takes {world_size}, one a rank"
        )
    for r, size in enumerate(sizes):
        check_int(fn, f"{name}[{r}]", size)
        if size < 0:
            raise ValueError(f"{fn}: {name}[{r}]={size}; it takes at least 0")
    if sum(sizes) != t.size(dim):
        raise ValueError(
            f"{fn}: {name}={list(sizes)} sums to {sum(sizes)}, but dim {dim} of rank {rank}'s "
            f"shape {_shape(t)} is {t.size(dim)}"
        )
    return list(sizes)


def check_splits(
    fn: str, splits: Any, xs: Sequence[Tensor], split_dim: int, concat_dim: int
) -> list[list[int]]:
    """splits[q][r], the size of what rank q sends rank r, for parts that can be joined."""
    for q, t in enumerate(xs):
        if t.dim() != xs[0].dim():
            raise ValueError(
                f"{fn}: rank {q} has shape {_shape(t)} and rank 0 has {_shape(xs[0])}; "
                "all ranks must have one number of dims"
            )
    if splits is None:
        rows = [part_sizes(fn, "splits", None, xs, q, split_dim) for q in range(len(xs))]
    else:
        if not isinstance(splits, list | tuple):
            raise TypeError(f"{fn}: splits must be a list of {len(xs)} rows, got {_kind(splits)}")
        if len(splits) != len(xs):
            raise ValueError(f"{fn}: splits has {len(splits)} rows; it takes {len(xs)}, one a rank")
        rows = [
            part_sizes(fn, f"splits[{q}]", row, xs, q, split_dim) for q, row in enumerate(splits)
        ]
    for r in range(len(xs)):
        parts = [_with(t.shape, split_dim, row[r]) for t, row in zip(xs, rows, strict=True)]
        for q, part in enumerate(parts):
            if _without(part, concat_dim) != _without(parts[0], concat_dim):
                raise ValueError(
                    f"{fn}: rank {r} would get shape {part} from rank {q} and {parts[0]} from "
                    f"rank 0; what a rank gets may differ along concat_dim {concat_dim} only"
                )
    return rows


def check_pairs(fn: str, pairs: Any, world_size: int) -> dict[int, int]:
    """The pairs as source of destination."""
    if not isinstance(pairs, list | tuple):
        raise TypeError(f"{fn}: pairs must be a list of (source, destination), got {_kind(pairs)}")
    source_of: dict[int, int] = {}
    for i, pair in enumerate(pairs):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise TypeError(f"{fn}: pairs[{i}] must be (source, destination), got {pair!r}")
        source, destination = pair
        check_rank(fn, f"pairs[{i}][0]", source, world_size)
        check_rank(fn, f"pairs[{i}][1]", destination, world_size)
        if source in source_of.values():
            raise ValueError(f"{fn}: rank {source} is a source twice; a rank sends at most once")
        if destination in source_of:
            raise ValueError(
                f"{fn}: rank {destination} is a destination twice; a rank receives at most once"
            )
        source_of[destination] = source
    return source_of


def _check_dense(fn: str, name: str, t: Tensor) -> None:
    if t.layout != torch.strided:
        raise TypeError(f"{fn}: {name} has layout {t.layout}; only torch.strided is supported")
    if t.is_quantized:
        raise TypeError(f"{fn}: {name} has dtype {t.dtype}; quantized tensors are not supported")


def _kind(value: Any) -> str:
    """The type of a wrong argument and, where it is short, its value."""
    name = type(value).__name__
    return f"{value!r} ({name})" if isinstance(value, int | float | str | None) else name


def _shape(t: Tensor) -> tuple[int, ...]:
    return tuple(t.shape)


def _without(shape: Sequence[int], dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


def _with(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])
