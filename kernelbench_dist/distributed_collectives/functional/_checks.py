"""Argument checks that one rank makes alone, before it communicates."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from kernelbench_dist.distributed_collectives import _arguments as arguments
from kernelbench_dist.distributed_collectives.functional._maps import Ranks

# Whose loss the result serves; the package's docstring says more.
Loss: TypeAlias = Literal["sum", "same"]


def check_loss(fn: str, loss: Any) -> bool:
    """Whether the ranks' losses are one loss, which counts once."""
    if loss not in ("sum", "same"):
        raise ValueError(f"{fn}: loss={loss!r}; it takes 'sum' or 'same'")
    return bool(loss == "same")


def check_own_dim(fn: str, name: str, dim: Any, x: Tensor) -> int:
    """A dim of this rank's tensor, as a number from 0."""
    if x.dim() == 0:
        raise ValueError(f"{fn}: x is a scalar, which has no dims; give it one with x.unsqueeze(0)")
    return arguments.check_dim(fn, name, dim, x)


def own_sizes(fn: str, name: str, sizes: Any, x: Tensor, dim: int, ranks: Ranks) -> list[int]:
    """The sizes of the parts in which this rank's tensor is cut: equal, or as given."""
    return arguments.part_sizes(fn, name, sizes, [x] * ranks.size, ranks.rank, dim)


def check_counts(fn: str, name: str, sizes: Any, ranks: Ranks) -> list[int]:
    """One size a rank, of any sum."""
    total = sum(sizes) if isinstance(sizes, list | tuple) and all(map(_is_int, sizes)) else 0
    return own_sizes(fn, name, sizes, torch.empty(max(total, 0), device="meta"), 0, ranks)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
