"""All-reduce with the sum.

Formula:
    y[b, d] = x[0, b, d] + ... + x[R-1, b, d]

Shapes:
    x (R, B, D): row r is what rank r holds; y (B, D), the same on every rank. R, B and D vary.

Where used:
    Tensor parallelism: after a row-parallel layer each rank has its terms of every activation, and
    all ranks need the sums.

Source:
    Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
    Parallelism", arXiv:1909.08053, section 3: the operator g.
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
    "large": {"R": 8, "B": 4096, "D": 4096},
    "awkward": {"R": 3, "B": 127, "D": 61},
}
VARIES = ("R", "B", "D")
OUTPUT = "same"
RIGHT_TRIVIAL_ANSWERS = ("ranks reversed", "the mean over ranks")


class Model(nn.Module):
    """x (R, B, D) -> y (B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(0)


class RankModel(nn.Module):
    """x (B, D) -> y (B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        dist.all_reduce(y)
        return y


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.B, n.D, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs."""
    return (x.numel() + x[0].numel()) * x.element_size(), x[1:].numel()
