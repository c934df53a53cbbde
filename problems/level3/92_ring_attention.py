"""Causal attention over a sequence that is split over the ranks (ring attention).

Formula, in a head, i and j being places in the whole sequence of R*T tokens:
    y[i] = sum over j <= i of softmax over j <= i (q[i] . k[j] / sqrt(H)) * v[j]

Shapes:
    q, k, v and y (R, B, N, T, H): row r is what rank r holds, the tokens r*T to (r+1)*T of each of
    B sequences, N heads of H features. R, B, N and T vary; H does not, as kernels are written for
    one or a few.

Where used:
    Training on sequences too long for one device. Keys and values go round a ring of ranks, and
    each rank merges what it computes with each part of them, so that none has all.

Source:
    Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context",
    arXiv:2310.01889, section 3 and algorithm 1.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 2  # sequences
N = 3  # heads
T = 16  # tokens on one rank
H = 16  # features of a head

SIZES = {
    "tiny": {"R": 4, "B": 2, "N": 3, "T": 16, "H": 16},
    "small": {"R": 8, "B": 1, "N": 8, "T": 128, "H": 64},
    "large": {"R": 8, "B": 1, "N": 16, "T": 1024, "H": 64},
    "awkward": {"R": 3, "B": 1, "N": 5, "T": 61, "H": 37},
}
VARIES = ("R", "B", "N", "T")
OUTPUT = "stacked"


class Model(nn.Module):
    """q, k, v (R, B, N, T, H) -> y (R, B, N, T, H)."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        whole = [t.movedim(0, 2).flatten(2, 3) for t in (q, k, v)]  # (B, N, R*T, H)
        y = F.scaled_dot_product_attention(*whole, is_causal=True)
        return y.unflatten(2, (q.shape[0], -1)).movedim(2, 0).contiguous()


class RankModel(nn.Module):
    """q, k, v (B, N, T, H) -> y (B, N, T, H)."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        later = q.new_ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
        kv = torch.stack([k, v])
        # Of each query: the largest score so far, the sum of exp(score - it), and of those * v.
        largest = q.new_full((*q.shape[:3], 1), -torch.inf)
        total, y = torch.zeros_like(largest), torch.zeros_like(q)
        for step in range(ranks):
            source = (rank - step) % ranks  # the rank whose keys and values are here now
            if source <= rank:
                scores = q @ kv[0].transpose(-1, -2) * q.shape[-1] ** -0.5
                if source == rank:
                    scores = scores.masked_fill(later, -torch.inf)
                before, largest = largest, largest.maximum(scores.amax(-1, keepdim=True))
                shrink, weights = (before - largest).exp(), (scores - largest).exp()
                total = total * shrink + weights.sum(-1, keepdim=True)
                y = y * shrink + weights @ kv[1]
            if step < ranks - 1:
                kv = self.pass_on(kv, (rank + 1) % ranks, (rank - 1) % ranks)
        return y / total

    def pass_on(self, kv: torch.Tensor, following: int, preceding: int) -> torch.Tensor:
        received = torch.empty_like(kv)
        both = [dist.P2POp(dist.isend, kv, following), dist.P2POp(dist.irecv, received, preceding)]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        return received


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.B, n.N, n.T, n.H, generator=generator) for _ in range(3)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (q, k, v and y, once each) and FLOPs (of the two products)."""
    ranks, sequences, heads, tokens, features = q.shape
    whole = ranks * tokens
    pairs = sequences * heads * whole * (whole + 1) // 2  # of a query and a key not after it
    return 4 * q.numel() * q.element_size(), 4 * pairs * features
