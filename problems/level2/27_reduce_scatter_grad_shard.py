"""Reduce-scatter of gradients with the mean: each rank keeps the shard that it owns.

Formula:
    y[r, b, d] = (x[0, r, b, d] + ... + x[R-1, r, b, d]) / R

Shapes:
    x (R, R, B, D): x[s, r] is what rank s has computed for the shard of rank r; y (R, B, D): row r
    is the shard of rank r. B varies. R and D do not, as in the original.

Where used:
    Sharded data parallelism (ZeRO-2, FSDP): after backward, each rank needs the averaged gradient
    only for the parameters whose optimizer state it holds.

Source:
    Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
    arXiv:1910.02054, section 5.2 (gradient partitioning).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 4  # rows of a shard
D = 32  # columns

SIZES = {
    "tiny": {"R": 4, "B": 4, "D": 32},
    "small": {"R": 8, "B": 64, "D": 1024},
    "large": {"R": 8, "B": 512, "D": 1024},
    "awkward": {"R": 3, "B": 127, "D": 61},
}
VARIES = ("B",)
OUTPUT = "stacked"
RIGHT_TRIVIAL_ANSWERS = ("ranks reversed", "the mean over ranks")


class Model(nn.Module):
    """x (R, R, B, D) -> y (R, B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(0)


class RankModel(nn.Module):
    """x (R, B, D) -> y (B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x[0])
        dist.reduce_scatter_tensor(y, x.flatten(0, 1).contiguous())
        return y / dist.get_world_size()


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.R, n.B, n.D, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs."""
    return (x.numel() + x[0].numel()) * x.element_size(), x.numel()
