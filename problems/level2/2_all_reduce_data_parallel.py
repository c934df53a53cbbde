"""A Linear layer on each rank's rows, then the mean over ranks by all-reduce.

Formula:
    y = (x[0] @ weight.T + ... + x[R-1] @ weight.T) / R

Shapes:
    x (R, B, D): row r is what rank r holds; weight (D, D), the same on every rank; y (B, D), the
    same on every rank. B varies. D does not: the weight fixes it. R is as it is in the original.

Where used:
    Data parallelism: each rank applies the same layer to rows of its own, and results are averaged.

Source:
    Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
    arXiv:2006.15704, section 3.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 32  # rows of one rank
D = 256  # features

SIZES = {
    "tiny": {"R": 4, "B": 32, "D": 256},
    "small": {"R": 8, "B": 512, "D": 1024},
    "large": {"R": 8, "B": 4096, "D": 2048},
    "awkward": {"R": 3, "B": 127, "D": 61},
}
VARIES = ("B",)
OUTPUT = "same"
# The layer is linear, so the mean of its outputs is its output for the mean.
RIGHT_TRIVIAL_ANSWERS = ("ranks reversed", "the mean over ranks")


class Model(nn.Module):
    """x (R, B, D) -> y (B, D)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.proj = nn.Linear(features, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(x).mean(0)


class RankModel(Model):
    """x (B, D) -> y (B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.proj(x)
        dist.all_reduce(y)
        return y / dist.get_world_size()


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.B, n.D, generator=generator)]


def get_init_inputs() -> list[int]:
    return [D]


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x, weight and y, once each) and FLOPs (the mean of x, one product)."""
    elements = x.numel() + D * D + x[0].numel()
    return elements * x.element_size(), x.numel() + 2 * x[0].numel() * D
