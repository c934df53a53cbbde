"""Ring shift: every rank hands its block to the next one, and the last rank hands it to the first.

Formula:
    y[r, b, d] = x[(r - 1) mod R, b, d]

Shapes:
    x (R, B, D): row r is what rank r holds before; y (R, B, D): row r is what it holds after. R, B
    and D vary.

Where used:
    A step of ring attention, in which blocks of keys and values go round; a step of a ring
    all-gather.

Source:
    Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context",
    arXiv:2310.01889, section 3.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 16  # rows
D = 48  # features

SIZES = {
    "tiny": {"R": 4, "B": 16, "D": 48},
    "small": {"R": 8, "B": 512, "D": 1024},
    "large": {"R": 8, "B": 4096, "D": 1024},
    "awkward": {"R": 3, "B": 127, "D": 61},
}
VARIES = ("R", "B", "D")
OUTPUT = "stacked"


class Model(nn.Module):
    """x (R, B, D) -> y (R, B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.roll(1, 0)


class RankModel(nn.Module):
    """x (B, D) -> y (B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        if ranks == 1:  # gloo does not send to itself
            return x.clone()
        x = x.contiguous()
        y = torch.empty_like(x)
        swap = [
            dist.P2POp(dist.isend, x, (rank + 1) % ranks),
            dist.P2POp(dist.irecv, y, (rank - 1) % ranks),
        ]
        for work in dist.batch_isend_irecv(swap):
            work.wait()
        return y


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.B, n.D, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs (none)."""
    return 2 * x.numel() * x.element_size(), 0
