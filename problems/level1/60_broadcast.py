"""Broadcast from the last rank.

Formula:
    y[r, b, d] = x[R-1, b, d]

Shapes:
    x (R, B, D): row r is what rank r holds before; y (R, B, D): row r is what it holds after. R, B
    and D vary. The root is the last rank, so that what rank 0 holds is never the answer.

Where used:
    One rank has read a batch, or has sampled the next tokens, and all others need the same.

Source:
    MPI Forum, "MPI: A Message-Passing Interface Standard", version 3.1, section 5.4 (Broadcast).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 16  # rows
D = 48  # features

SIZES = {
    "tiny": {"R": 4, "B": 16, "D": 48},
    "small": {"R": 8, "B": 512, "D": 1024},
    "large": {"R": 8, "B": 4096, "D": 1024},
    "awkward": {"R": 3, "B": 127, "D": 61},
}
VARIES = ("R", "B", "D")
OUTPUT = "stacked"


class Model(nn.Module):
    """x (R, B, D) -> y (R, B, D), with memory of its own for every rank."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[-1].repeat(len(x), 1, 1)


class RankModel(nn.Module):
    """x (B, D) -> y (B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        dist.broadcast(y, src=dist.get_world_size() - 1)
        return y


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.B, n.D, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (the root's row of x, and y) and FLOPs (none)."""
    return (x[-1].numel() + x.numel()) * x.element_size(), 0
