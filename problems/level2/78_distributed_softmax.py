"""Softmax over features that are spread over the ranks.

Formula:
    y[r, b, d] = exp(x[r, b, d]) / (sum over all q and e of exp(x[q, b, e]))

Shapes:
    x (R, B, D): row r is rank r's slice of the features; y (R, B, D): row r is its slice of the
    result. R, B and D vary.

Where used:
    Attention whose keys are spread over ranks, and probabilities of a vocabulary that is. Each rank
    finds the maximum of its slice and the sum of exponentials relative to it, and all exchange
    these pairs alone.

Source:
    Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867,
    section 3.1.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 14  # rows
D = 36  # features of one rank

SIZES = {
    "tiny": {"R": 4, "B": 14, "D": 36},
    "small": {"R": 8, "B": 256, "D": 1024},
    "large": {"R": 8, "B": 2048, "D": 4096},
    "awkward": {"R": 3, "B": 127, "D": 61},
}
VARIES = ("R", "B", "D")
OUTPUT = "stacked"


class Model(nn.Module):
    """x (R, B, D) -> y (R, B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cat(x.unbind(0), dim=-1).softmax(-1)
        return torch.stack(y.chunk(x.shape[0], dim=-1))


class RankModel(nn.Module):
    """x (B, D) -> y (B, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ranks = dist.get_world_size()
        top = x.amax(-1)
        powers = (x - top.unsqueeze(-1)).exp()
        pair = torch.cat([top, powers.sum(-1)])
        pairs = pair.new_empty(ranks * len(pair))
        dist.all_gather_into_tensor(pairs, pair)
        tops, sums = pairs.view(ranks, 2, -1).unbind(1)
        highest = tops.amax(0)
        total = (sums * (tops - highest).exp()).sum(0)
        return powers * ((top - highest).exp() / total).unsqueeze(-1)


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [3 * draws.normal(n.R, n.B, n.D, generator=generator)]  # some features stand out


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs.

    The FLOPs of an element: a comparison, a subtraction, an exponential, an addition, a product.
    """
    return 2 * x.numel() * x.element_size(), 5 * x.numel()
