"""All-reduce with the product.

Formula:
    y[p] = x[0, p] * ... * x[R-1, p]

Shapes:
    x (R, P): row r is what rank r holds; y (P,), the same on every rank. R and P vary.

Where used:
    Volume rendering with space dealt to ranks: each rank knows which share of the light passes its
    own part of P rays, and the product is what passes all of them.

Source:
    Li et al., "NeRF-XL: Scaling NeRFs with Multiple GPUs", arXiv:2404.16221: the transmittance of a
    ray is the product of those of its segments, each on one GPU.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
P = 768  # rays

SIZES = {
    "tiny": {"R": 4, "P": 768},
    "small": {"R": 8, "P": 1 << 19},
    "large": {"R": 8, "P": 1 << 24},
    "awkward": {"R": 3, "P": 1009},
}
VARIES = ("R", "P")
OUTPUT = "same"
RIGHT_TRIVIAL_ANSWERS = ("ranks reversed",)


class Model(nn.Module):
    """x (R, P) -> y (P,)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.prod(0)


class RankModel(nn.Module):
    """x (P,) -> y (P,)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        dist.all_reduce(y, op=dist.ReduceOp.PRODUCT)
        return y


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    """[x], shares of light between 0.25 and 1."""
    n = draws.sizes(globals(), generator, jitter)
    return [draws.uniform(0.25, 1.0, n.R, n.P, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs."""
    return (x.numel() + x[0].numel()) * x.element_size(), x[1:].numel()
