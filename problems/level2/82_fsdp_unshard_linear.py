"""All-gather of a sharded Linear layer's parameters, then the layer (FSDP's forward).

Formula:
    flat = concat(shards[0], ..., shards[R-1])
    weight, bias = the first K*H elements of flat as (K, H), the next K
    y[r] = x[r] @ weight.T + bias

Shapes:
    x (R, B, H): row r is rank r's part of the batch. shards (R, S): row r is what rank r keeps of
    weight and bias, S = ceil((K*H + K) / R); what is over at the end is padding. y (R, B, K). R, B
    and H vary. K does not: it is an argument of Model.

Where used:
    Fully sharded data parallelism: a rank keeps 1/R of the parameters, and has them whole only
    while it computes with them.

Source:
    Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel",
    arXiv:2304.11277, section 3.2.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 8  # rows on one rank
H = 32  # input features
K = 42  # output features

SIZES = {
    "tiny": {"R": 4, "B": 8, "H": 32, "K": 42},
    "small": {"R": 8, "B": 128, "H": 1024, "K": 1024},
    "large": {"R": 8, "B": 2048, "H": 2048, "K": 2048},
    "awkward": {"R": 3, "B": 61, "H": 67, "K": 101},
}
VARIES = ("R", "B", "H")
OUTPUT = "stacked"


class Model(nn.Module):
    """x (R, B, H), shards (R, S) -> y (R, B, K)."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def linear(self, x: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
        split = self.outputs * x.shape[-1]
        weight = flat[:split].view(self.outputs, x.shape[-1])
        return F.linear(x, weight, flat[split : split + self.outputs])

    def forward(self, x: torch.Tensor, shards: torch.Tensor) -> torch.Tensor:
        return self.linear(x, shards.flatten())


class RankModel(Model):
    """x (B, H), shard (S,) -> y (B, K)."""

    def forward(self, x: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
        flat = shard.new_empty(dist.get_world_size() * shard.numel())
        dist.all_gather_into_tensor(flat, shard)
        return self.linear(x, flat)


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    shard = -(-n.K * (n.H + 1) // n.R)
    bound = n.H**-0.5  # as nn.Linear draws
    x = draws.normal(n.R, n.B, n.H, generator=generator)
    return [x, draws.uniform(-bound, bound, n.R, shard, generator=generator)]


def get_init_inputs() -> list[int]:
    return [K]


def get_cost(x: torch.Tensor, shards: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x, shards and y, once each) and FLOPs (two for each product)."""
    rows = x.shape[0] * x.shape[1]
    elements = x.numel() + shards.numel() + rows * K
    return elements * x.element_size(), 2 * rows * x.shape[-1] * K
