"""A broadcast of rank 0's shard, then a Linear layer on every rank.

Formula:
    y[r] = x[0] @ weight.T + bias, for every rank r

Shapes:
    x (R, B, D): row r is what rank r holds before the broadcast; weight (D, D) and bias (D,), the
    same on every rank; y (R, B, D): row r is what rank r computes. B varies. D does not: the weight
    fixes it. R is as it is in the original.

Where used:
    One rank owns a shard (of parameters, or of a batch), and all others compute with it.

Source:
    Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
    arXiv:1910.02054, section 7.2.2 (the rank that owns a partition broadcasts it when it is
    needed).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 16  # rows
D = 128  # features

SIZES = {
    "tiny": {"R": 4, "B": 16, "D": 128},
    "small": {"R": 8, "B": 512, "D": 512},
    "large": {"R": 8, "B": 8192, "D": 1024},
    "awkward": {"R": 3, "B": 127, "D": 61},
}
VARIES = ("B",)
OUTPUT = "stacked"
# The root is rank 0, as in the original, and only its part counts.
RIGHT_TRIVIAL_ANSWERS = ("rank 0's part only", "no communication")


class Model(nn.Module):
    """x (R, B, D) -> y (R, B, D), with memory of its own for every rank."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.proj = nn.Linear(features, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(x[0]).repeat(len(x), 1, 1)


class RankModel(Model):
    """x (B, D) -> y (B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shard = x.clone()
        dist.broadcast(shard, src=0)
        return self.proj(shard)


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.B, n.D, generator=generator)]


def get_init_inputs() -> list[int]:
    return [D]


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x[0], weight, bias and y, once each) and FLOPs (of one product)."""
    elements = x[0].numel() + D * D + D + x.numel()
    return elements * x.element_size(), 2 * x[0].numel() * D
