"""Reduce-scatter: the sum over ranks, of which each rank ends up with its own rows.

Formula:
    y[r, b, d] = x[0, r*B + b, d] + ... + x[R-1, r*B + b, d]

Shapes:
    x (R, R*B, D): row r is what rank r holds, its terms of all rows; y (R, B, D): row r is what
    rank r ends up with. R, B and D vary.

Where used:
    Tensor parallelism with sequence parallelism: after a row-parallel layer each rank has its terms
    of the whole sequence, and goes on with the sums of its own part of it.

Source:
    Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
    arXiv:2205.05198, section 4.2.2.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 8  # rows that one rank ends up with
D = 48  # features

SIZES = {
    "tiny": {"R": 4, "B": 8, "D": 48},
    "small": {"R": 8, "B": 64, "D": 1024},
    "large": {"R": 8, "B": 512, "D": 4096},
    "awkward": {"R": 3, "B": 127, "D": 61},
}
VARIES = ("R", "B", "D")
OUTPUT = "stacked"
RIGHT_TRIVIAL_ANSWERS = ("ranks reversed", "the mean over ranks")


class Model(nn.Module):
    """x (R, R*B, D) -> y (R, B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ranks, _, features = x.shape
        return x.sum(0).view(ranks, -1, features)


class RankModel(nn.Module):
    """x (R*B, D) -> y (B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, features = x.shape
        y = x.new_empty(rows // dist.get_world_size(), features)
        dist.reduce_scatter_tensor(y, x)
        return y


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.R * n.B, n.D, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs."""
    return (x.numel() + x[0].numel()) * x.element_size(), x[1:].numel()
