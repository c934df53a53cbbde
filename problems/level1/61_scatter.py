"""Scatter from the last rank: rank r receives the root's chunk r.

Formula:
    y[r, b, d] = x[R-1, r, b, d]

Shapes:
    x (R, R, B, D): x[s] is what rank s holds, one chunk for each rank; y (R, B, D): row r is what
    rank r receives. Only the root's chunks are sent. R, B and D vary.

Where used:
    One rank has read a batch and deals it out.

Source:
    MPI Forum, "MPI: A Message-Passing Interface Standard", version 3.1, section 5.6 (Scatter).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 16  # rows of a chunk
D = 48  # features

SIZES = {
    "tiny": {"R": 4, "B": 16, "D": 48},
    "small": {"R": 8, "B": 64, "D": 1024},
    "large": {"R": 4, "B": 4096, "D": 1024},
    "awkward": {"R": 3, "B": 127, "D": 61},
}
VARIES = ("R", "B", "D")
OUTPUT = "stacked"


class Model(nn.Module):
    """x (R, R, B, D) -> y (R, B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[-1].clone()


class RankModel(nn.Module):
    """x (R, B, D) -> y (B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        root = dist.get_world_size() - 1
        y = torch.empty_like(x[0])
        dist.scatter(y, list(x.unbind(0)) if dist.get_rank() == root else None, src=root)
        return y


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.R, n.B, n.D, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (the root's chunks, read and written) and FLOPs (none)."""
    return 2 * x[-1].numel() * x.element_size(), 0
