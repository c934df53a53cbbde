"""Logarithm of the sum of exponentials over virtual ranks.

Formula:
    y[b, d] = log(exp(x[0, b, d]) + ... + exp(x[R-1, b, d])), without overflow

Shapes:
    x (R, B, D): row r is what rank r holds; y (B, D), the same on every rank. R, B and D vary.

Where used:
    Attention over a sequence that is split over ranks: each rank has the logarithm of its own
    softmax denominator, and this is that of the whole. As a program: the maximum, then a sum.

Source:
    Shyam et al., "Tree Attention: Topology-aware Decoding for Long-Context Attention on GPU
    clusters", arXiv:2408.04093: the reductions of logsumexp and max over ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 10  # rows
D = 32  # features

SIZES = {
    "tiny": {"R": 4, "B": 10, "D": 32},
    "small": {"R": 8, "B": 512, "D": 1024},
    "large": {"R": 8, "B": 4096, "D": 4096},
    "awkward": {"R": 3, "B": 127, "D": 61},
}
VARIES = ("R", "B", "D")
OUTPUT = "same"
RIGHT_TRIVIAL_ANSWERS = ("ranks reversed",)


class Model(nn.Module):
    """x (R, B, D) -> y (B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.logsumexp(0)


class RankModel(nn.Module):
    """x (B, D) -> y (B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        top = x.clone()
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        total = (x - top).exp()
        dist.all_reduce(total)
        return top + total.log()


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.B, n.D, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs.

    For each number of x: a comparison, a difference, an exponential and a sum.
    """
    return (x.numel() + x[0].numel()) * x.element_size(), 4 * x.numel()
