"""Broadcast of rank 0's row to all virtual ranks, in the columns of a mask only.

Formula:
    y[r, j] = x[0, j] where mask[j], else x[r, j]
    mask: about half of the columns, from a fixed seed, a buffer.

Shapes:
    x and y (R, D): row r is what rank r holds. R, the number of rows (18 in the original, which
    calls it B), varies. D does not: the mask fixes it.

Where used:
    Data parallelism with buffers: before a step all ranks take over those of rank 0, such as the
    running means of batch norm, while the rest of a flat vector of states stays each rank's own.

Source:
    Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
    arXiv:2006.15704, section 4.1, "Model Buffers".
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 18  # ranks, each with one row
D = 44  # columns

SIZES = {
    "tiny": {"R": 18, "D": 44},
    "small": {"R": 8, "D": 1 << 18},
    "large": {"R": 8, "D": 1 << 23},
    "awkward": {"R": 3, "D": 1009},
}
VARIES = ("R",)
OUTPUT = "stacked"


class Model(nn.Module):
    """x (R, D) -> y (R, D)."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        seeded = torch.Generator().manual_seed(30)
        self.register_buffer("mask", torch.rand(columns, generator=seeded, device="cpu") < 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(self.mask, x[0], x)


class RankModel(Model):
    """x (D,) -> y (D,)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        row0 = x.clone()
        dist.broadcast(row0, src=0)
        return torch.where(self.mask, row0, x)


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.D, generator=generator)]


def get_init_inputs() -> list[int]:
    return [D]


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs.

    Memory is read by the sector, and hardly one lies in masked columns altogether.
    """
    return 2 * x.numel() * x.element_size(), 0
