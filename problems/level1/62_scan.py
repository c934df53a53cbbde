"""Inclusive scan: every rank gets the sum over itself and all ranks before it.

Formula:
    y[r, b, d] = x[0, b, d] + ... + x[r, b, d]

Shapes:
    x (R, B, D): row r is what rank r holds; y (R, B, D): row r is what rank r gets. R, B and
    D vary.

Where used:
    Offsets of what each rank writes into one shared sequence, and the running state of linear
    attention where the sequence is split over ranks.

Source:
    MPI Forum, "MPI: A Message-Passing Interface Standard", version 3.1, section 5.11.1 (Inclusive
    Scan).
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
    "large": {"R": 8, "B": 2048, "D": 2048},
    "awkward": {"R": 3, "B": 127, "D": 61},
}
VARIES = ("R", "B", "D")
OUTPUT = "stacked"


class Model(nn.Module):
    """x (R, B, D) -> y (R, B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0)


class RankModel(nn.Module):
    """x (B, D) -> y (B, D). torch.distributed has no scan: the sum goes from rank to rank."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank = dist.get_rank()
        y = x.clone()
        if rank > 0:
            before = torch.empty_like(y)
            dist.recv(before, src=rank - 1)
            y += before
        if rank < dist.get_world_size() - 1:
            dist.send(y, dst=rank + 1)
        return y


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.B, n.D, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs (an addition a rank but the first)."""
    return 2 * x.numel() * x.element_size(), x.numel() - x[0].numel()
