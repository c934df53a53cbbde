"""All-to-all: each rank sends each other an equal part of what it holds.

Formula:
    y[r, s*B + b, d] = x[s, r*B + b, d]

Shapes:
    x (R, R*B, D): row s is what rank s holds, B rows for each rank; y (R, R*B, D): row r is what
    rank r ends up with, B rows from each rank. R, B and D vary.

Where used:
    Mixture of experts with one group of experts on each rank and a fixed capacity: each rank sends
    B tokens to the experts of every other.

Source:
    Lepikhin et al., "GShard: Scaling Giant Models with Conditional Computation and Automatic
    Sharding", arXiv:2006.16668, section 3.3: AllToAll.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 8  # rows from each rank to each
D = 48  # features

SIZES = {
    "tiny": {"R": 4, "B": 8, "D": 48},
    "small": {"R": 8, "B": 32, "D": 1024},
    "large": {"R": 8, "B": 256, "D": 4096},
    "awkward": {"R": 3, "B": 127, "D": 61},
}
VARIES = ("R", "B", "D")
OUTPUT = "stacked"


class Model(nn.Module):
    """x (R, R*B, D) -> y (R, R*B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ranks, rows, features = x.shape
        parts = x.view(ranks, ranks, rows // ranks, features)  # from, to, row, feature
        return parts.transpose(0, 1).reshape(ranks, rows, features)


class RankModel(nn.Module):
    """x (R*B, D) -> y (R*B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x)
        return y


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.R * n.B, n.D, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs."""
    return 2 * x.numel() * x.element_size(), 0
