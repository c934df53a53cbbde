"""Row-parallel Linear: each rank has some of the input features, and the products are summed.

Formula:
    y = x[0] @ weight[0].T + ... + x[R-1] @ weight[R-1].T + bias

Shapes:
    x (R, B, H): row r is rank r's slice of the input features; weight (R, K, H): row r is the shard
    for them; bias (K,), a parameter, added once; y (B, K), the same on every rank. B varies. R, H
    and K do not: they are those of one model.

Where used:
    Tensor parallelism: the second layer of an MLP and the output projection of attention take what
    a column-parallel layer left split over the ranks (Megatron's RowParallelLinear).

Source:
    Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
    Parallelism", arXiv:1909.08053, section 3.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 12  # rows
H = 24  # input features of one rank
K = 40  # output features

SIZES = {
    "tiny": {"R": 4, "B": 12, "H": 24, "K": 40},
    "small": {"R": 8, "B": 512, "H": 128, "K": 1024},
    "large": {"R": 8, "B": 4096, "H": 512, "K": 4096},
    "awkward": {"R": 3, "B": 127, "H": 37, "K": 61},
}
VARIES = ("B",)
OUTPUT = "same"
RIGHT_TRIVIAL_ANSWERS = ("ranks reversed",)  # x and weight together: the sum is the same


class Model(nn.Module):
    """x (R, B, H), weight (R, K, H) -> y (B, K)."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.einsum("rbh,rkh->bk", x, weight) + self.bias


class RankModel(Model):
    """x (B, H), weight (K, H) -> y (B, K)."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, weight)
        dist.all_reduce(y)
        return y + self.bias


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    scale = (n.R * n.H) ** -0.5  # weights as nn.Linear draws those of the whole layer
    return [
        draws.normal(n.R, n.B, n.H, generator=generator),
        draws.uniform(-scale, scale, n.R, n.K, n.H, generator=generator),
    ]


def get_init_inputs() -> list[int]:
    return [K]


def get_cost(x: torch.Tensor, weight: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x, weight, bias and y, once each) and FLOPs (two for each product)."""
    rows, outputs = x.shape[1], weight.shape[1]
    elements = x.numel() + weight.numel() + outputs + rows * outputs
    return elements * x.element_size(), 2 * rows * weight.numel()
