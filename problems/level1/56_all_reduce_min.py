"""All-reduce with the minimum.

Formula:
    y[h, w] = min(x[0, h, w], ..., x[R-1, h, w])

Shapes:
    x (R, H, W): row r is what rank r holds; y (H, W), the same on every rank. R, H and W vary.

Where used:
    Rendering with the scene's objects dealt to ranks (sort-last): each rank has the depth of the
    nearest of its own objects at each pixel, and what is seen is the nearest of all.

Source:
    Molnar et al., "A Sorting Classification of Parallel Rendering", IEEE Computer Graphics and
    Applications 14(4), 1994, the sort-last class.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
H = 24  # rows of pixels
W = 32  # pixels in a row

SIZES = {
    "tiny": {"R": 4, "H": 24, "W": 32},
    "small": {"R": 8, "H": 480, "W": 640},
    "large": {"R": 8, "H": 4096, "W": 4096},
    "awkward": {"R": 3, "H": 127, "W": 61},
}
VARIES = ("R", "H", "W")
OUTPUT = "same"
RIGHT_TRIVIAL_ANSWERS = ("ranks reversed",)


class Model(nn.Module):
    """x (R, H, W) -> y (H, W)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.amin(0)


class RankModel(nn.Module):
    """x (H, W) -> y (H, W)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        dist.all_reduce(y, op=dist.ReduceOp.MIN)
        return y


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    """[x], depths between 0.1 and 1."""
    n = draws.sizes(globals(), generator, jitter)
    return [draws.uniform(0.1, 1.0, n.R, n.H, n.W, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs (comparisons)."""
    return (x.numel() + x[0].numel()) * x.element_size(), x[1:].numel()
