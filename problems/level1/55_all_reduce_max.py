"""All-reduce with the maximum.

Formula:
    y[n] = max(x[0, n], ..., x[R-1, n])

Shapes:
    x (R, N): row r is what rank r holds; y (N,), the same on every rank. R and N vary.

Where used:
    Cross-entropy with a vocabulary that is split over ranks: each rank has the largest of its own
    logits of N tokens, and before the exponentials all need the largest of all.

Source:
    NVIDIA, Megatron-LM, https://github.com/NVIDIA/Megatron-LM,
    megatron/core/tensor_parallel/cross_entropy.py: the all_reduce of logits_max.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
N = 768  # numbers on one rank

SIZES = {
    "tiny": {"R": 4, "N": 768},
    "small": {"R": 8, "N": 1 << 19},
    "large": {"R": 8, "N": 1 << 24},
    "awkward": {"R": 3, "N": 1009},
}
VARIES = ("R", "N")
OUTPUT = "same"
RIGHT_TRIVIAL_ANSWERS = ("ranks reversed",)


class Model(nn.Module):
    """x (R, N) -> y (N,)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.amax(0)


class RankModel(nn.Module):
    """x (N,) -> y (N,)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        dist.all_reduce(y, op=dist.ReduceOp.MAX)
        return y


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.N, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs (comparisons)."""
    return (x.numel() + x[0].numel()) * x.element_size(), x[1:].numel()
