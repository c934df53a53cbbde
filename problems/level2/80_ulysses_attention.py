"""Ulysses attention: all-to-all from shards of the tokens to shards of the heads, and back.

Formula:
    for each sequence b and head h, with q', k', v' the rows of all ranks, in order, (R*S, D):
    y' = softmax(q' @ k'.T / sqrt(D), where token i sees tokens 0 to i only) @ v'
    y[r, b, :, h] = y'[r*S : (r+1)*S]

Shapes:
    q, k, v and y (R, B, S, R*N, D): row r is what rank r holds, S tokens of each sequence in all
    R*N heads. Between the two exchanges it has R*S tokens in N heads. B and S vary. R, N and D do
    not: they are those of one model, whose heads the ranks must divide.

Where used:
    Training on long sequences: each rank holds a part of the tokens, and attention alone needs all
    of them, but heads are independent.

Source:
    Jacobs et al., "DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme Long
    Sequence Transformer Models", arXiv:2309.14509, section 3.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 7  # sequences
S = 10  # tokens of a sequence on one rank
N = 2  # heads that one rank attends to
D = 8  # features of a head

SIZES = {
    "tiny": {"R": 4, "B": 7, "S": 10, "N": 2, "D": 8},
    "small": {"R": 8, "B": 1, "S": 128, "N": 2, "D": 64},
    "large": {"R": 8, "B": 1, "S": 512, "N": 4, "D": 128},
    "awkward": {"R": 3, "B": 5, "S": 43, "N": 3, "D": 37},
}
VARIES = ("B", "S")
OUTPUT = "stacked"


class Model(nn.Module):
    """q, k and v (R, B, S, R*N, D) -> y (R, B, S, R*N, D)."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        ranks = q.shape[0]
        q, k, v = (torch.cat(t.unbind(0), dim=1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.stack(y.transpose(1, 2).chunk(ranks, dim=1))


class RankModel(nn.Module):
    """q, k and v (B, S, R*N, D) -> y (B, S, R*N, D)."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.exchange(t, split=2, join=1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.exchange(y.transpose(1, 2), split=1, join=2)

    def exchange(self, x: torch.Tensor, split: int, join: int) -> torch.Tensor:
        """Send each rank its part along one dim; join the parts that come along another."""
        sent = torch.stack(x.chunk(dist.get_world_size(), dim=split))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        return torch.cat(received.unbind(0), dim=join)


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    shape = (n.R, n.B, n.S, n.R * n.N, n.D)
    return [draws.normal(*shape, generator=generator) for _ in range(3)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (q, k, v and y, once each) and FLOPs (those of the two products)."""
    tokens = q.shape[0] * q.shape[2]  # one sees (tokens + 1) / 2 on average
    return 4 * q.numel() * q.element_size(), 2 * (tokens + 1) * q.numel()
