"""A pipeline of two stages: rank 0 sends what it computes to rank 1, whose result all ranks get.

Formula:
    h = relu(x[0] @ weight1.T + bias1)      on rank 0, sent to rank 1
    y[r] = h @ weight2.T + bias2            on rank 1, sent to every rank r

Shapes:
    x (R, B, D): row r is what rank r holds, of which only that of rank 0 enters the pipeline;
    weight1 (H, D), bias1 (H,), weight2 (K, H), bias2 (K,), the same on every rank; y (R, B, K): row
    r is what rank r gets. B varies. D, H and K do not: the weights fix them. R is as it is in the
    original. With one rank only, it does both stages.

Where used:
    Pipeline parallelism; inference in which all ranks need the result of the last stage.

Source:
    Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism",
    arXiv:1811.06965, section 2.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 12  # rows
D = 64  # features that enter
H = 96  # features between the stages
K = 48  # features that leave

SIZES = {
    "tiny": {"R": 4, "B": 12, "D": 64, "H": 96, "K": 48},
    "small": {"R": 8, "B": 512, "D": 512, "H": 1024, "K": 512},
    "large": {"R": 8, "B": 8192, "D": 1024, "H": 4096, "K": 1024},
    "awkward": {"R": 3, "B": 127, "D": 61, "H": 131, "K": 53},
}
VARIES = ("B",)
OUTPUT = "stacked"
# Only what rank 0 holds enters the pipeline.
RIGHT_TRIVIAL_ANSWERS = ("rank 0's part only", "no communication")


class Model(nn.Module):
    """x (R, B, D) -> y (R, B, K), with memory of its own for every rank."""

    def __init__(self, features: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.second = nn.Linear(hidden, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(x[0]).relu())
        return y.repeat(len(x), 1, 1)


class RankModel(Model):
    """x (B, D) -> y (B, K)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank, last = dist.get_rank(), min(1, dist.get_world_size() - 1)
        if rank == 0:
            h = self.first(x).relu()
            if rank != last:
                dist.send(h, dst=last)
        elif rank == last:
            h = x.new_empty(len(x), self.first.out_features)
            dist.recv(h, src=0)
        y = self.second(h) if rank == last else x.new_empty(len(x), self.second.out_features)
        dist.broadcast(y, src=last)
        return y


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.B, n.D, generator=generator)]


def get_init_inputs() -> list[int]:
    return [D, H, K]


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x[0], parameters and y, once each) and FLOPs (of one pass)."""
    ranks, rows, _ = x.shape
    elements = x[0].numel() + H * D + H + K * H + K + ranks * rows * K
    return elements * x.element_size(), 2 * rows * H * (D + K)
