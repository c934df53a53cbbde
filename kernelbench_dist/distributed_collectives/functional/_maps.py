"""Linear maps over the ranks of a group, each with its adjoint.

A map takes one flat tensor on each rank, communicates, and gives each rank a flat tensor of its
own memory. Its adjoint is a map again, so backward is differentiable as forward is. `once` marks
maps whose result is one value that all ranks hold, with one gradient that all ranks hold.

Only calls and dtypes that every backend has are used: what is moved goes as bytes where a backend
may not know the dtype; fp16 and bf16 are summed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = [
    "WIDE",
    "Copy",
    "Exchange",
    "FromRank",
    "Join",
    "Map",
    "OnRank",
    "Part",
    "Ranks",
    "Sum",
    "SumParts",
    "ToRank",
    "apply",
    "gather_to",
    "join_flat",
    "scatter_from",
    "sums_natively",
]

_EVERYWHERE = (
    torch.uint8, torch.int8, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
)  # fmt: skip
WIDE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}


@dataclass(frozen=True)
class Ranks:
    """A group, and this process's place in it."""

    group: Any
    rank: int
    size: int


class Map(Protocol):
    def run(self, x: Tensor) -> Tensor: ...

    def adjoint(self) -> Map: ...


def apply(linear: Map, x: Tensor) -> Tensor:
    """The map of x, flattened, as a differentiable function."""
    return _Linear.apply(x.reshape(-1), None, linear)[0]


class _Linear(torch.autograd.Function):
    """y = linear(x). Its second result holds nothing: it ties backward to this node.

    A gradient that is constant on one rank (that of a sum, say) may depend on x on another. Second
    derivatives then need the ranks' communication all the same, and the tie leads them here.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, tie: Tensor | None, linear: Map) -> tuple[Tensor, Tensor]:
        y = linear.run(x.resolve_conj().resolve_neg().contiguous())
        own_tie = x.new_empty(0)
        ctx.linear = linear
        ctx.save_for_backward(own_tie)
        return y, own_tie

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        (own_tie,) = ctx.saved_tensors
        return _Linear.apply(g, own_tie, ctx.linear.adjoint())[0], None, None


# The same value on every rank


@dataclass(frozen=True)
class Sum:
    ranks: Ranks
    once: bool = False

    def run(self, x: Tensor) -> Tensor:
        summed = summable(x)
        if summed.numel():
            dist.all_reduce(summed, group=self.ranks.group)
        return _summed(summed, x.dtype)

    def adjoint(self) -> Map:
        return Copy(self.ranks) if self.once else self


@dataclass(frozen=True)
class Copy:
    """One value that all ranks hold, as a value of each rank."""

    ranks: Ranks

    def run(self, x: Tensor) -> Tensor:
        return x.clone()

    def adjoint(self) -> Map:
        return Sum(self.ranks, once=True)


@dataclass(frozen=True)
class FromRank:
    ranks: Ranks
    src: int
    once: bool = False

    def run(self, x: Tensor) -> Tensor:
        sent = x.clone() if self.ranks.rank == self.src else torch.zeros_like(x)
        if sent.numel():
            dist.broadcast(_movable(sent), group=self.ranks.group, group_src=self.src)
        return sent

    def adjoint(self) -> Map:
        return (OnRank if self.once else ToRank)(self.ranks, self.src)


@dataclass(frozen=True)
class ToRank:
    """The sum on dst, zeros elsewhere."""

    ranks: Ranks
    dst: int

    def run(self, x: Tensor) -> Tensor:
        summed = summable(x)
        if summed.numel():
            dist.reduce(summed, group=self.ranks.group, group_dst=self.dst)
        # What a reduce leaves on the others differs from backend to backend.
        return _summed(summed if self.ranks.rank == self.dst else summed.zero_(), x.dtype)

    def adjoint(self) -> Map:
        return FromRank(self.ranks, self.dst)


@dataclass(frozen=True)
class OnRank:
    """src's value of what all ranks hold; zeros elsewhere."""

    ranks: Ranks
    src: int

    def run(self, x: Tensor) -> Tensor:
        return x.clone() if self.ranks.rank == self.src else torch.zeros_like(x)

    def adjoint(self) -> Map:
        return FromRank(self.ranks, self.src, once=True)


# A part on each rank


@dataclass(frozen=True)
class Join:
    """The ranks' tensors, of the given sizes, one after the other."""

    ranks: Ranks
    sizes: tuple[int, ...]
    once: bool = False

    def run(self, x: Tensor) -> Tensor:
        longest = max(self.sizes)
        sent = torch.nn.functional.pad(_movable(x), (0, (longest - len(x)) * _items(x)))
        got = join_flat(sent, self.ranks).view(x.dtype)
        if longest == min(self.sizes):
            return got
        rows = got.view(self.ranks.size, longest)
        return torch.cat([row[:size] for row, size in zip(rows, self.sizes, strict=True)])

    def adjoint(self) -> Map:
        return (Part if self.once else SumParts)(self.ranks, self.sizes)


@dataclass(frozen=True)
class SumParts:
    """Rank r's part of the sum."""

    ranks: Ranks
    sizes: tuple[int, ...]

    def run(self, x: Tensor) -> Tensor:
        longest, own = max(self.sizes), self.sizes[self.ranks.rank]
        if longest != min(self.sizes):
            parts = x.split(self.sizes)
            x = torch.cat([torch.nn.functional.pad(p, (0, longest - len(p))) for p in parts])
        summed = summable(x)
        part = summed.new_empty(len(summed) // self.ranks.size)
        if len(summed):
            _reduce_scatter(part, summed, group=self.ranks.group)
        return _summed(part, x.dtype)[:own]

    def adjoint(self) -> Map:
        return Join(self.ranks, self.sizes)


@dataclass(frozen=True)
class Part:
    """Rank r's part of one value that all ranks hold."""

    ranks: Ranks
    sizes: tuple[int, ...]

    def run(self, x: Tensor) -> Tensor:
        return x.split(self.sizes)[self.ranks.rank].clone()

    def adjoint(self) -> Map:
        return Join(self.ranks, self.sizes, once=True)


@dataclass(frozen=True)
class Exchange:
    """`sent[r]` elements go to rank r, `got[r]` come from it."""

    ranks: Ranks
    sent: tuple[int, ...]
    got: tuple[int, ...]

    def run(self, x: Tensor) -> Tensor:
        sent, n = _movable(x), _items(x)
        got = sent.new_empty(sum(self.got) * n)
        # Called with nothing to send or to get, too: other ranks may have something.
        dist.all_to_all_single(
            got, sent, [k * n for k in self.got], [k * n for k in self.sent], self.ranks.group
        )
        return got.view(x.dtype)

    def adjoint(self) -> Map:
        return Exchange(self.ranks, self.got, self.sent)


def gather_to(dst: int, sizes: tuple[int, ...], ranks: Ranks) -> Exchange:
    """To dst the ranks' tensors, of the given sizes; to the others nothing."""
    sent = tuple(sizes[ranks.rank] if r == dst else 0 for r in range(ranks.size))
    return Exchange(ranks, sent, sizes if ranks.rank == dst else (0,) * ranks.size)


def scatter_from(src: int, sizes: tuple[int, ...], ranks: Ranks) -> Exchange:
    """To rank r part r of src's tensor."""
    sent = sizes if ranks.rank == src else (0,) * ranks.size
    return Exchange(
        ranks, sent, tuple(sizes[ranks.rank] if r == src else 0 for r in range(ranks.size))
    )


def sums_natively(dtype: torch.dtype) -> bool:
    """Whether every backend sums the dtype."""
    return dtype in _EVERYWHERE or dtype.is_complex


def summable(x: Tensor) -> Tensor:
    """A copy of x in a dtype that every backend sums without needless rounding."""
    wide = x.to(WIDE.get(x.dtype, x.dtype), copy=True)
    return torch.view_as_real(wide).reshape(-1) if wide.is_complex() else wide


def _summed(x: Tensor, dtype: torch.dtype) -> Tensor:
    return (torch.view_as_complex(x.view(-1, 2)) if dtype.is_complex else x).to(dtype)


def _movable(x: Tensor) -> Tensor:
    """x, or its bytes where a backend may not know its dtype: _items(x) of them an element."""
    return x if x.dtype in _EVERYWHERE else x.view(torch.uint8)


def _items(x: Tensor) -> int:
    return 1 if x.dtype in _EVERYWHERE else x.element_size()


def join_flat(x: Tensor, ranks: Ranks) -> Tensor:
    """The ranks' flat tensors of one size, one after the other."""
    got = x.new_empty(len(x) * ranks.size)
    if len(x):
        _all_gather(got, x, group=ranks.group)
    return got


def _first_of(*names: str) -> Callable[..., Any]:
    """torch renamed these, and warns of the old names."""
    return next((getattr(dist, name) for name in names if hasattr(dist, name)), None)  # type: ignore[return-value]


_all_gather = _first_of("all_gather_single", "all_gather_into_tensor")
_reduce_scatter = _first_of("reduce_scatter_single", "reduce_scatter_tensor")
