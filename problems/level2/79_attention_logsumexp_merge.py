"""Attention with keys and values spread over the ranks, merged by the logsumexp of the scores.

Formula:
    s_r = q @ k[r].T / sqrt(D)
    o_r = softmax(s_r, over the last dim) @ v[r];  l_r = logsumexp(s_r, over the last dim)
    y = sum over r of exp(l_r - logsumexp(l_0, ..., l_{R-1})) * o_r
    which is attention on the keys and values of all ranks.

Shapes:
    q (B, N, L, D): L queries in each of N heads of B requests, every rank has them whole;
    k and v (R, B, N, S, D): row r is rank r's S places of the key-value cache; y (B, N, L, D), the
    same on every rank. There is no mask. B and S vary. R, N, L and D do not: N and D are those of
    one model, R and L are a server's setting.

Where used:
    Decoding with a long context: the cache is too large for one rank or too slow to read, and L is
    1, or a few where tokens are guessed ahead.

Source:
    Dao, Haziza, Massa and Sizov, "Flash-Decoding for long-context inference", 2023,
    https://pytorch.org/blog/flash-decoding/ (its third step, here over ranks).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 7  # requests
N = 2  # heads
L = 3  # queries of a head
S = 14  # keys and values of a head on one rank
D = 8  # features of a head

SIZES = {
    "tiny": {"R": 4, "B": 7, "N": 2, "L": 3, "S": 14, "D": 8},
    "small": {"R": 8, "B": 4, "N": 4, "L": 1, "S": 256, "D": 64},
    "large": {"R": 8, "B": 2, "N": 8, "L": 1, "S": 4096, "D": 128},
    "awkward": {"R": 3, "B": 5, "N": 3, "L": 5, "S": 127, "D": 37},
}
VARIES = ("B", "S")
SHARED = ("q",)
OUTPUT = "same"
RIGHT_TRIVIAL_ANSWERS = ("ranks reversed",)  # k and v together: the sums are the same


class Model(nn.Module):
    """q (B, N, L, D), k and v (R, B, N, S, D) -> y (B, N, L, D)."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys, values = (torch.cat(t.unbind(0), dim=-2) for t in (k, v))
        return F.scaled_dot_product_attention(q, keys, values)


class RankModel(nn.Module):
    """q (B, N, L, D), k and v (B, N, S, D) -> y (B, N, L, D)."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.mT * q.shape[-1] ** -0.5
        mine = scores.logsumexp(-1)
        every = mine.new_empty(dist.get_world_size() * mine.shape[0], *mine.shape[1:])
        dist.all_gather_into_tensor(every, mine)
        whole = every.unflatten(0, (-1, mine.shape[0])).logsumexp(0)
        y = scores.softmax(-1) @ v * (mine - whole).exp().unsqueeze(-1)
        dist.all_reduce(y)
        return y


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [
        3 * draws.normal(n.B, n.N, n.L, n.D, generator=generator),  # so that some keys stand out
        draws.normal(n.R, n.B, n.N, n.S, n.D, generator=generator),
        draws.normal(n.R, n.B, n.N, n.S, n.D, generator=generator),
    ]


def get_init_inputs() -> list[int]:
    return []


def get_cost(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (q, k, v and y, once each) and FLOPs (those of the two products)."""
    queries = q.shape[2]
    return (2 * q.numel() + 2 * k.numel()) * q.element_size(), 4 * queries * k.numel()
