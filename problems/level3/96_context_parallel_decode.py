"""Attention of one new token over a cache of keys and values that is split over the ranks.

Formula, for sequence b and query head n, g = n div (N / G) being its head of keys and values:
    score[t] = q[b, n] . k[b, g, t] / sqrt(H)
    y[b, n]  = sum over t < length[b] of softmax over t < length[b] (score[t]) * v[b, g, t]
    t runs over all R*T places; place t is the (t mod T)-th of rank t div T.

Shapes:
    q and y (B, N, H) and length (B,) int64, from 1 to R*T, are the same on every rank. k, v
    (R, B, G, T, H): row r is rank r's part of the cache; what lies at and after length is not used.
    N = P*G. R, B and T vary; G, P and H are choices of the model.

Where used:
    Decoding with long contexts: the cache of one sequence does not fit, or would take too long to
    read, on one device. Some ranks have no token of a short sequence.

Source:
    Yang et al., "Context Parallelism for Scalable Million-Token Inference", arXiv:2411.01783,
    section 3.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 3  # sequences
T = 16  # places of the cache on one rank, for each sequence
G = 2  # heads of keys and values
P = 3  # query heads to each of them
H = 16  # features of a head

SIZES = {
    "tiny": {"R": 4, "B": 3, "T": 16, "G": 2, "P": 3, "H": 16},
    "small": {"R": 8, "B": 4, "T": 256, "G": 4, "P": 4, "H": 64},
    "large": {"R": 8, "B": 8, "T": 1024, "G": 8, "P": 4, "H": 128},
    "awkward": {"R": 3, "B": 5, "T": 61, "G": 3, "P": 5, "H": 37},
}
VARIES = ("R", "B", "T")
SHARED = ("q", "length")
OUTPUT = "same"


def scores(q: torch.Tensor, k: torch.Tensor, length: torch.Tensor, start: int) -> torch.Tensor:
    """q (B, N, H), k (B, G, t, H) of the places from start on -> (B, G, N/G, t); -inf if unused."""
    grouped = q.unflatten(1, (k.shape[1], -1)) * q.shape[-1] ** -0.5
    places = torch.arange(start, start + k.shape[2], device=k.device)
    unused = places >= length[:, None, None, None]
    return (grouped @ k.mT).masked_fill(unused, -torch.inf)


class Model(nn.Module):
    """q (B, N, H), k, v (R, B, G, T, H), length (B,) -> y (B, N, H)."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor
    ) -> torch.Tensor:
        k, v = (t.movedim(0, 2).flatten(2, 3) for t in (k, v))  # (B, G, R*T, H)
        return (scores(q, k, length, 0).softmax(-1) @ v).flatten(1, 2)


class RankModel(nn.Module):
    """q (B, N, H), k, v (B, G, T, H), length (B,) -> y (B, N, H)."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor
    ) -> torch.Tensor:
        score = scores(q, k, length, dist.get_rank() * k.shape[2])
        largest = score.amax(-1, keepdim=True)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        weight = (score - largest).exp()
        # One message: what is to be divided, and by what.
        sums = torch.cat([weight @ v, weight.sum(-1, keepdim=True)], dim=-1)
        dist.all_reduce(sums)
        return (sums[..., :-1] / sums[..., -1:]).flatten(1, 2)


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    """Lengths are spread evenly, in a random order, so that every draw has the same cost."""
    n = draws.sizes(globals(), generator, jitter)
    order = draws.normal(n.B, generator=generator).argsort()  # of 0, ..., B-1
    return [
        draws.normal(n.B, n.G * n.P, n.H, generator=generator),
        draws.normal(n.R, n.B, n.G, n.T, n.H, generator=generator),
        draws.normal(n.R, n.B, n.G, n.T, n.H, generator=generator),
        (order + 1) * (n.R * n.T - 1) // n.B + 1,
    ]


def get_init_inputs() -> list[int]:
    return []


def get_cost(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor
) -> tuple[int, int]:
    """Bytes that must move (q, y, length and the used part of k and v, once each) and FLOPs."""
    used = int(length.sum())  # places, over all sequences
    elements = 2 * q.numel() + 2 * used * k.shape[2] * k.shape[4]
    nbytes = elements * q.element_size() + length.numel() * length.element_size()
    return nbytes, 4 * used * q.shape[1] * q.shape[2]
