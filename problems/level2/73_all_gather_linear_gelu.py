"""All-gather of the rows, then a column-parallel Linear and GELU.

Formula:
    rows = concat(x[0], ..., x[R-1], on the first dim)
    y[r] = gelu(rows @ weight[r].T + bias[r])
    gelu(z) = z / 2 * (1 + tanh(sqrt(2 / pi) * (z + 0.044715 * z**3)))

Shapes:
    x (R, B, H): rank r holds B of the R*B rows; weight (R, K, H) and bias (R, K): row r is rank r's
    shard of the layer; y (R, R*B, K): rank r has all rows of its K features. B varies. R, H and K
    do not: they are those of one model.

Where used:
    Tensor parallelism with sequence parallelism. Outside of attention and MLP each rank holds some
    of the tokens; the first layer of the MLP gathers them.

Source:
    Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
    arXiv:2205.05198, section 4.2.2; GELU by tanh: Hendrycks and Gimpel, "Gaussian Error Linear
    Units (GELUs)", arXiv:1606.08415, section 2.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 6  # rows of one rank
H = 32  # input features
K = 20  # output features of one rank

SIZES = {
    "tiny": {"R": 4, "B": 6, "H": 32, "K": 20},
    "small": {"R": 8, "B": 64, "H": 1024, "K": 128},
    "large": {"R": 8, "B": 512, "H": 4096, "K": 512},
    "awkward": {"R": 3, "B": 43, "H": 61, "K": 37},
}
VARIES = ("B",)
OUTPUT = "stacked"


class Model(nn.Module):
    """x (R, B, H), weight (R, K, H), bias (R, K) -> y (R, R*B, K)."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        products = x.flatten(0, 1) @ weight.mT
        return F.gelu(products + bias.unsqueeze(1), approximate="tanh")


class RankModel(nn.Module):
    """x (B, H), weight (K, H), bias (K,) -> y (R*B, K)."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        rows = x.new_empty(dist.get_world_size() * x.shape[0], x.shape[1])
        dist.all_gather_into_tensor(rows, x)
        return F.gelu(F.linear(rows, weight, bias), approximate="tanh")


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    scale = (3 / n.H) ** 0.5  # so that products are about as large as x, where GELU is curved
    return [
        draws.normal(n.R, n.B, n.H, generator=generator),
        draws.uniform(-scale, scale, n.R, n.K, n.H, generator=generator),
        draws.normal(n.R, n.K, generator=generator),
    ]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x, weight, bias and y, once each) and FLOPs (two for each product)."""
    rows, outputs = x.shape[0] * x.shape[1], bias.numel()
    elements = x.numel() + weight.numel() + outputs + rows * outputs
    return elements * x.element_size(), 2 * rows * weight.numel()
