"""Row-parallel Linear, then reduce-scatter: the products are summed and each rank keeps some rows.

Formula:
    z = x[0] @ weight[0].T + ... + x[R-1] @ weight[R-1].T
    y[r] = z[r*B : (r+1)*B]

Shapes:
    x (R, R*B, H) and weight (R, K, H): row r is rank r's slice of the input features, for all R*B
    rows, and the weight's shard for them; y (R, B, K): rank r has B rows, with all features. There
    is no bias. B varies. R, H and K do not: they are those of one model.

Where used:
    Tensor parallelism with sequence parallelism. The second layer of the MLP and the output
    projection of attention hand each rank some of the tokens.

Source:
    Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
    arXiv:2205.05198, section 4.2.2.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 6  # rows that one rank keeps
H = 24  # input features of one rank
K = 40  # output features

SIZES = {
    "tiny": {"R": 4, "B": 6, "H": 24, "K": 40},
    "small": {"R": 8, "B": 64, "H": 128, "K": 1024},
    "large": {"R": 8, "B": 512, "H": 512, "K": 4096},
    "awkward": {"R": 3, "B": 43, "H": 37, "K": 61},
}
VARIES = ("B",)
OUTPUT = "stacked"
RIGHT_TRIVIAL_ANSWERS = ("ranks reversed",)  # x and weight together: the sum is the same


class Model(nn.Module):
    """x (R, R*B, H), weight (R, K, H) -> y (R, B, K)."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        z = torch.einsum("rnh,rkh->nk", x, weight)
        return z.unflatten(0, (x.shape[0], -1))


class RankModel(nn.Module):
    """x (R*B, H), weight (K, H) -> y (B, K)."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        part = F.linear(x, weight)
        y = part.new_empty(part.shape[0] // dist.get_world_size(), part.shape[1])
        dist.reduce_scatter_tensor(y, part)
        return y


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    scale = (n.R * n.H) ** -0.5  # weights as nn.Linear draws those of the whole layer
    return [
        draws.normal(n.R, n.R * n.B, n.H, generator=generator),
        draws.uniform(-scale, scale, n.R, n.K, n.H, generator=generator),
    ]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor, weight: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x, weight and y, once each) and FLOPs (two for each product)."""
    rows, outputs = x.shape[1], weight.shape[1]
    elements = x.numel() + weight.numel() + rows * outputs
    return elements * x.element_size(), 2 * rows * weight.numel()
