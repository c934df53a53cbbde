"""Sum over virtual ranks of vectors that are valid up to a length of each rank's own.

Formula:
    y[s] = sum over ranks r of x[r, s] * mask[r, s]
    mask[r, s] = 1 where s < S * share[r] // 20, else 0; share = 8, 12, 10, 18, 8, 12, ...

Shapes:
    x (R, S): row r is what rank r holds; y (S,), the same on every rank. S varies, and the mask
    with it. R does not: the buffer of shares fixes it.

Where used:
    Sums by position over ranks whose data is padded to one length. As a program it is a
    reduce-scatter, after which each rank has a part of y, and an all-gather of the parts.

Source:
    Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
    arXiv:1910.02054, section 7.1: an all-reduce is a reduce-scatter and an all-gather.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
S = 20  # positions

SIZES = {
    "tiny": {"R": 4, "S": 20},
    "small": {"R": 8, "S": 1 << 19},
    "large": {"R": 8, "S": 1 << 24},
    "awkward": {"R": 3, "S": 1009},
}
VARIES = ("S",)
OUTPUT = "same"


class Model(nn.Module):
    """x (R, S) -> y (S,)."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.register_buffer("share", _shares(ranks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = x.shape[1]
        mask = torch.arange(positions, device=x.device) < (positions * self.share // 20)[:, None]
        return (x * mask).sum(0)


class RankModel(Model):
    """x (S,) -> y (S,)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ranks, positions = dist.get_world_size(), len(x)
        valid = positions * self.share[dist.get_rank()] // 20
        masked = x * (torch.arange(positions, device=x.device) < valid)
        part = x.new_empty(-(-positions // ranks))  # the last rank's may be padded
        dist.reduce_scatter_tensor(part, F.pad(masked, (0, ranks * len(part) - positions)))
        y = x.new_empty(ranks * len(part))
        dist.all_gather_into_tensor(y, part)
        return y[:positions]


def _shares(ranks: int) -> torch.Tensor:
    """The valid part of each rank's row, in twentieths."""
    return torch.tensor([(8, 12, 10, 18)[rank % 4] for rank in range(ranks)])


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.S, generator=generator)]


def get_init_inputs() -> list[int]:
    return [R]


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (the valid part of x, and y, once each) and FLOPs."""
    ranks, positions = x.shape
    valid = int((positions * _shares(ranks) // 20).sum())
    return (valid + positions) * x.element_size(), valid
