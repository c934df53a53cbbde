"""GELU on each rank, then the sum over ranks.

Formula:
    y[b, d] = gelu(x[0, b, d]) + ... + gelu(x[R-1, b, d]), gelu(t) = t/2 (1 + erf(t / sqrt(2)))

Shapes:
    x (R, B, D): row r is what rank r holds; y (B, D), the same on every rank. R, B and D vary.

Where used:
    Branches of a network that lie on different ranks and add to one output. The sum of GELUs is
    not the GELU of the sum: the activation has to come before the all-reduce.

Source:
    Hendrycks and Gimpel, "Gaussian Error Linear Units (GELUs)", arXiv:1606.08415, section 2.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 14  # rows
D = 40  # features

SIZES = {
    "tiny": {"R": 4, "B": 14, "D": 40},
    "small": {"R": 8, "B": 512, "D": 1024},
    "large": {"R": 8, "B": 2048, "D": 2048},
    "awkward": {"R": 3, "B": 127, "D": 61},
}
VARIES = ("R", "B", "D")
OUTPUT = "same"
RIGHT_TRIVIAL_ANSWERS = ("ranks reversed",)


class Model(nn.Module):
    """x (R, B, D) -> y (B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x).sum(0)


class RankModel(nn.Module):
    """x (B, D) -> y (B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(x)
        dist.all_reduce(y)
        return y


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.B, n.D, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs (six an element, erf counted as one)."""
    return (x.numel() + x[0].numel()) * x.element_size(), 6 * x.numel()
