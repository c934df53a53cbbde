"""Each rank scales its own slice of the features, and an all-gather joins the slices.

Formula:
    y[b, r*C + c] = SCALE * x[r, b, r*C + c], SCALE = 0.5

Shapes:
    x (R, B, R*C): row r is what rank r holds; of it the rank uses columns r*C to (r+1)*C - 1.
    y (B, R*C), the same on every rank. B varies. R and C do not: they fix the model's width, R*C.

Where used:
    Tensor parallelism: each rank computes a slice of the features of a layer, and the slices are
    gathered where all features are needed.

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
B = 8  # rows
C = 16  # features of one rank's slice
SCALE = 0.5

SIZES = {
    "tiny": {"R": 4, "B": 8, "C": 16},
    "small": {"R": 8, "B": 512, "C": 128},
    "large": {"R": 4, "B": 4096, "C": 1024},
    "awkward": {"R": 3, "B": 127, "C": 61},
}
VARIES = ("B",)
OUTPUT = "same"


class Model(nn.Module):
    """x (R, B, R*C) -> y (B, R*C)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        slices = x.unflatten(-1, (len(x), -1))  # (R, B, R, C)
        return torch.cat([slices[r, :, r] * SCALE for r in range(len(x))], dim=-1)


class RankModel(nn.Module):
    """x (B, R*C) -> y (B, R*C)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ranks = dist.get_world_size()
        mine = x.unflatten(-1, (ranks, -1))[:, dist.get_rank()] * SCALE  # (B, C)
        gathered = mine.new_empty(ranks * mine.shape[0], mine.shape[1])
        dist.all_gather_into_tensor(gathered, mine.contiguous())
        return torch.cat(gathered.chunk(ranks), dim=-1)


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.B, n.R * n.C, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (the slices that are used, and y) and FLOPs."""
    return 2 * x[0].numel() * x.element_size(), x[0].numel()
