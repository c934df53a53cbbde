"""Column-parallel Linear: each rank has some of the output features, and they are gathered.

Formula:
    y_r = x @ weight[r].T + bias[r]
    y = concat(y_0, ..., y_{R-1}, on the last dim)

Shapes:
    x (B, H): every rank has it whole; weight (R, K, H) and bias (R, K): row r is rank r's shard of
    a layer of R*K outputs; y (B, R*K), the same on every rank. B varies. R, H and K do not: they
    are those of one model.

Where used:
    Tensor parallelism, where whole rows are needed after the layer, as the logits of a language
    model are (Megatron's ColumnParallelLinear with gather_output=True).

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
H = 32  # input features
K = 20  # output features of one rank

SIZES = {
    "tiny": {"R": 4, "B": 12, "H": 32, "K": 20},
    "small": {"R": 8, "B": 512, "H": 1024, "K": 128},
    "large": {"R": 8, "B": 4096, "H": 4096, "K": 512},
    "awkward": {"R": 3, "B": 127, "H": 61, "K": 37},
}
VARIES = ("B",)
SHARED = ("x",)
OUTPUT = "same"


class Model(nn.Module):
    """x (B, H), weight (R, K, H), bias (R, K) -> y (B, R*K)."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight.flatten(0, 1), bias.flatten())


class RankModel(nn.Module):
    """x (B, H), weight (K, H), bias (K,) -> y (B, R*K)."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ranks = dist.get_world_size()
        part = F.linear(x, weight, bias)
        parts = part.new_empty(ranks * part.shape[0], part.shape[1])
        dist.all_gather_into_tensor(parts, part)
        return torch.cat(parts.chunk(ranks), dim=-1)


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    scale = n.H**-0.5  # weights and biases as nn.Linear draws them
    return [
        draws.normal(n.B, n.H, generator=generator),
        draws.uniform(-scale, scale, n.R, n.K, n.H, generator=generator),
        draws.uniform(-scale, scale, n.R, n.K, generator=generator),
    ]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x, weight, bias and y, once each) and FLOPs (two for each product)."""
    rows, outputs = x.shape[0], bias.numel()
    elements = x.numel() + weight.numel() + outputs + rows * outputs
    return elements * x.element_size(), 2 * rows * weight.numel()
