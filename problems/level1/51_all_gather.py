"""All-gather of features: every rank ends up with the features of all ranks, side by side.

Formula:
    y[b, r*D + d] = x[r, b, d]

Shapes:
    x (R, B, D): row r is what rank r holds; y (B, R*D), the same on every rank. R, B and D vary.

Where used:
    Tensor parallelism: a column-parallel layer leaves each rank some of the features, or of the
    vocabulary's logits, and what follows needs all of them. As a program it is a gather of rows,
    which is all that the collective knows, and a transposition.

Source:
    Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
    Parallelism", arXiv:1909.08053, section 3: Y = all-gather([Y1, Y2]) of the output embedding.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 16  # rows
D = 24  # features on one rank

SIZES = {
    "tiny": {"R": 4, "B": 16, "D": 24},
    "small": {"R": 8, "B": 512, "D": 512},
    "large": {"R": 8, "B": 4096, "D": 2048},
    "awkward": {"R": 3, "B": 127, "D": 61},
}
VARIES = ("R", "B", "D")
OUTPUT = "same"


class Model(nn.Module):
    """x (R, B, D) -> y (B, R*D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(x.unbind(0), dim=-1)


class RankModel(nn.Module):
    """x (B, D) -> y (B, R*D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ranks = dist.get_world_size()
        rows, features = x.shape
        gathered = x.new_empty(ranks * rows, features)
        dist.all_gather_into_tensor(gathered, x)
        return torch.cat(gathered.chunk(ranks), dim=-1)


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.B, n.D, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs."""
    return 2 * x.numel() * x.element_size(), 0
