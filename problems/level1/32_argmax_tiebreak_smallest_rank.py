"""Maximum over virtual ranks, and the smallest rank that has it.

Formula:
    y[b, c, 0] = max over ranks r of x[r, b, c]
    y[b, c, 1] = the smallest r with x[r, b, c] = y[b, c, 0], as a number of x's dtype

Shapes:
    x (R, B, C): row r is what rank r holds; y (B, C, 2), the same on every rank. R is fixed, as in
    the original; B and C vary.

Where used:
    Greedy decoding with a vocabulary that is split over ranks: the largest logit and who has it.
    Ties go to the smallest rank, so that every number of ranks gives the same token.

Source:
    MPI: A Message-Passing Interface Standard, version 3.1, section 5.9.4, MPI_MAXLOC.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 8  # rows
C = 28  # columns

SIZES = {
    "tiny": {"R": 4, "B": 8, "C": 28},
    "small": {"R": 8, "B": 512, "C": 1024},
    "large": {"R": 8, "B": 4096, "C": 4096},
    "awkward": {"R": 3, "B": 127, "C": 61},
}
VARIES = ("B", "C")
OUTPUT = "same"


class Model(nn.Module):
    """x (R, B, C) -> y (B, C, 2)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        top, first = x.max(dim=0)  # the first of equal ones
        return torch.stack([top, first.to(x.dtype)], dim=-1)


class RankModel(nn.Module):
    """x (B, C) -> y (B, C, 2)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        top = x.clone()
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        first = torch.where(x == top, dist.get_rank(), dist.get_world_size())
        dist.all_reduce(first, op=dist.ReduceOp.MIN)
        return torch.stack([top, first.to(x.dtype)], dim=-1)


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    """[x]: one number in five is 0, the rest lie in [-1, 0). Ties are nearly all between zeros.

    Zeros stay tied when inputs are rounded or scaled, so that the bound on the rank stays tight.
    """
    n = draws.sizes(globals(), generator, jitter)
    return [draws.uniform(-1.0, 0.25, n.R, n.B, n.C, generator=generator).clamp(max=0.0)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs (comparisons)."""
    return (x.numel() + 2 * x[0].numel()) * x.element_size(), x[1:].numel()
