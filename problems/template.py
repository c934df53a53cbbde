"""What it computes, in a few words.

Formula:
    ...

Shapes:
    ...

Where used:
    ...

Source:
    ...
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 16  # rows

SIZES = {
    "tiny": {"R": 4, "B": 16},
    "small": {"R": 8, "B": 4096},
    "large": {"R": 8, "B": 16_777_216},
    "awkward": {"R": 3, "B": 127},
}
VARIES = ("R", "B")  # which of them get_inputs may draw near their nominal value
OUTPUT = "same"  # "stacked": rank r has output[r]; "same": each rank has it whole


class Model(nn.Module):
    """x (R, B) -> y (B): on the inputs of all ranks, stacked."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class RankModel(nn.Module):
    """x (B) -> y (B): the same on one rank."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError(f"on rank {dist.get_rank()}")


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.B, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs."""
    return (x.numel() + x[0].numel()) * x.element_size(), x.numel()
