"""All-gather over virtual ranks on the last dim, then a Linear layer.

Formula:
    y = concat(x[0], ..., x[R-1], on the last dim) @ weight.T + bias

Shapes:
    x (R, B, H): row r is what rank r holds; weight (K, R*H); bias (K,); y (B, K), the same on every
    rank. float32 throughout. B varies from trial to trial. R and H do not: the weight fixes them.

Where used:
    Tensor parallelism. A column-parallel layer leaves each rank a slice of the features; where the
    next layer needs all of them, the slices are gathered and multiplied by its weight.

Source:
    Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
    Parallelism", arXiv:1909.08053, section 3.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 12  # rows, the nominal number
H = 32  # features on one rank
K = 56  # output features

SIZES = {
    "tiny": {"R": 4, "B": 12, "H": 32, "K": 56},
    "small": {"R": 8, "B": 512, "H": 128, "K": 1024},
    "large": {"R": 8, "B": 8192, "H": 1024, "K": 4096},
    "awkward": {"R": 3, "B": 127, "H": 61, "K": 211},
}
VARIES = ("B",)
OUTPUT = "same"


class Model(nn.Module):
    """x (ranks, B, features) -> y (B, outputs)."""

    def __init__(self, ranks: int, features: int, outputs: int) -> None:
        super().__init__()
        self.ranks, self.features = ranks, features
        self.proj = nn.Linear(ranks * features, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Checked, because the same product with R and H traded would give a wrong answer silently.
        if x.dim() != 3 or x.shape[0] != self.ranks or x.shape[2] != self.features:
            raise ValueError(
                f"x must have shape ({self.ranks}, B, {self.features}), got {tuple(x.shape)}"
            )
        return self.proj(torch.cat(x.unbind(0), dim=-1))


class RankModel(Model):
    """x (B, features) -> y (B, outputs)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gathered = x.new_empty(self.ranks * x.shape[0], x.shape[1])
        dist.all_gather_into_tensor(gathered, x.contiguous())
        return super().forward(gathered.view(self.ranks, *x.shape))


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    """[x], standard normal.

    The nominal size: get_inputs(torch.Generator().manual_seed(9), False).
    """
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.B, n.H, generator=generator)]


def get_init_inputs() -> list[int]:
    return [R, H, K]


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x, weight, bias and y, once each) and FLOPs (two for each product)."""
    ranks, rows, features = x.shape
    elements = x.numel() + K * ranks * features + K + rows * K
    return elements * x.element_size(), 2 * rows * K * ranks * features
