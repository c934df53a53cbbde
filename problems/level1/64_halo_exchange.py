"""Halo exchange: a three-point stencil over rows that are split among the ranks.

Formula:
    y[i] = x[i] + A (x[i-1] - 2 x[i] + x[i+1]), A = 0.25, i = 0, ..., R*N-1 the row in the whole
    grid; x[-1] = x[R*N] = 0

Shapes:
    x (R, N, D): rank r holds rows r*N to (r+1)*N - 1 of the grid, so that its first and last row
    need a row of each neighbour; y (R, N, D), split in the same way. R, N and D vary.

Where used:
    An explicit step of the heat equation on a grid that is split among ranks; convolutions whose
    images are split along their height.

Source:
    Dryden et al., "Improving Strong-Scaling of CNN Training by Exploiting Finer-Grained
    Parallelism", arXiv:1903.06681, section III.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
N = 16  # rows of the grid on one rank
D = 48  # columns
A = 0.25  # diffusivity * time step / spacing^2

SIZES = {
    "tiny": {"R": 4, "N": 16, "D": 48},
    "small": {"R": 8, "N": 512, "D": 1024},
    "large": {"R": 8, "N": 4096, "D": 1024},
    "awkward": {"R": 3, "N": 127, "D": 61},
}
VARIES = ("R", "N", "D")
OUTPUT = "stacked"


def step(rows: torch.Tensor) -> torch.Tensor:
    """The stencil where both neighbours are there: (n + 2, D) -> (n, D)."""
    above, here, below = rows[:-2], rows[1:-1], rows[2:]
    return here + A * (above - 2 * here + below)


class Model(nn.Module):
    """x (R, N, D) -> y (R, N, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return step(F.pad(x.flatten(0, 1), (0, 0, 1, 1))).view(x.shape)


class RankModel(nn.Module):
    """x (N, D) -> y (N, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank, last = dist.get_rank(), dist.get_world_size() - 1
        rows = F.pad(x, (0, 0, 1, 1))  # zeros stay where there is no neighbour
        swap = []
        if rank > 0:
            swap.append(dist.P2POp(dist.isend, rows[1:2], rank - 1))
            swap.append(dist.P2POp(dist.irecv, rows[:1], rank - 1))
        if rank < last:
            swap.append(dist.P2POp(dist.isend, rows[-2:-1], rank + 1))
            swap.append(dist.P2POp(dist.irecv, rows[-1:], rank + 1))
        if swap:
            for work in dist.batch_isend_irecv(swap):
                work.wait()
        return step(rows)


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.N, n.D, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs (five an element)."""
    return 2 * x.numel() * x.element_size(), 5 * x.numel()
