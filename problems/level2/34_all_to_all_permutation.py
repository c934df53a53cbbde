"""All-to-all with equal splits, then a factor.

Formula:
    y[r, s, b, d] = SCALE * x[s, r, b, d], SCALE = 1.25

Shapes:
    x (R, R, B, D): x[s, r] is what rank s sends to rank r; y (R, R, B, D): y[r, s] is what rank r
    has received from rank s. B varies. R and D do not, as in the original.

Where used:
    Mixture of experts: tokens go to the ranks that hold their experts. Ulysses attention: a tensor
    split along the sequence becomes one that is split along the heads.

Source:
    Lepikhin et al., "GShard: Scaling Giant Models with Conditional Computation and Automatic
    Sharding", arXiv:2006.16668, section 3 (AllToAll).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 2  # rows from one rank to another
D = 64  # features
SCALE = 1.25

SIZES = {
    "tiny": {"R": 4, "B": 2, "D": 64},
    "small": {"R": 8, "B": 64, "D": 1024},
    "large": {"R": 8, "B": 512, "D": 1024},
    "awkward": {"R": 3, "B": 127, "D": 61},
}
VARIES = ("B",)
OUTPUT = "stacked"


class Model(nn.Module):
    """x (R, R, B, D) -> y (R, R, B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).contiguous() * SCALE


class RankModel(nn.Module):
    """x (R, B, D) -> y (R, B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x)
        return y * SCALE


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.R, n.B, n.D, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs."""
    return 2 * x.numel() * x.element_size(), x.numel()
