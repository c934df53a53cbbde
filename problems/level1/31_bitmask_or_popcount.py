"""How many bits are set on any of the virtual ranks.

Formula:
    y[b] = popcount(x[0, b] | x[1, b] | ... | x[R-1, b]), as float32

Shapes:
    x (R, B) int32, all 32 bits in use: row r is what rank r holds; y (B,) float32, the same on
    every rank. R and B vary.

Where used:
    Data parallelism with parameters that some ranks do not use in a step: each rank has a bitmap of
    those that it used, and needs to know which were used anywhere.

Source:
    Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
    arXiv:2006.15704, section 4.2, "Globally Unused Parameters".
"""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 24  # words of 32 bits

SIZES = {
    "tiny": {"R": 4, "B": 24},
    "small": {"R": 8, "B": 1 << 19},
    "large": {"R": 8, "B": 1 << 24},
    "awkward": {"R": 3, "B": 1009},
}
VARIES = ("R", "B")
OUTPUT = "same"
RIGHT_TRIVIAL_ANSWERS = ("ranks reversed",)

# Neighbouring fields of so many bits are added, where the mask has ones in every second field.
_STEPS = ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF))


class Model(nn.Module):
    """x (R, B) -> y (B,)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = functools.reduce(torch.bitwise_or, x.unbind(0)).to(torch.int64)
        for bits, mask in _STEPS:
            count = (count & mask) + ((count >> bits) & mask)
        return count.to(torch.float32)


class RankModel(Model):
    """x (B,) -> y (B,). NCCL has no all-reduce of bits, so the words are gathered."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ranks = dist.get_world_size()
        gathered = x.new_empty(ranks * len(x))
        dist.all_gather_into_tensor(gathered, x)
        return super().forward(gathered.view(ranks, -1))


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    """[x], of whose bits one in eight is set, so that the answers are neither 0 nor 32."""
    n = draws.sizes(globals(), generator, jitter)

    def words() -> torch.Tensor:
        return draws.integers(-(2**31), 2**31, n.R, n.B, dtype=torch.int32, generator=generator)

    return [words() & words() & words()]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs: bits are no floats."""
    return (x.numel() + x[0].numel()) * x.element_size(), 0
