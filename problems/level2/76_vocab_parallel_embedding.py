"""Vocabulary-parallel embedding: each rank looks up the tokens that it has, and rows are summed.

Formula:
    y[b, s] = weight[t // V, t % V], where t = tokens[b, s]

Shapes:
    tokens (B, S): int64 from 0 to R*V - 1, every rank has them whole; weight (R, V, D): rank r has
    the embeddings of tokens r*V to (r+1)*V - 1; y (B, S, D), the same on every rank. B and S vary.
    R, V and D do not: they are those of one model.

Where used:
    Tensor parallelism: the first layer of a language model. A rank gives 0 for the tokens of
    others, so that the sum over ranks is the embedding (Megatron's VocabParallelEmbedding).

Source:
    Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
    Parallelism", arXiv:1909.08053, section 3.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 8  # sequences
S = 14  # tokens of a sequence
V = 40  # tokens of the vocabulary on one rank
D = 24  # features

SIZES = {
    "tiny": {"R": 4, "B": 8, "S": 14, "V": 40, "D": 24},
    "small": {"R": 8, "B": 4, "S": 256, "V": 512, "D": 1024},
    "large": {"R": 8, "B": 8, "S": 2048, "V": 4000, "D": 4096},
    "awkward": {"R": 3, "B": 7, "S": 61, "V": 127, "D": 37},
}
VARIES = ("B", "S")
SHARED = ("tokens",)
OUTPUT = "same"


class Model(nn.Module):
    """tokens (B, S), weight (R, V, D) -> y (B, S, D)."""

    def forward(self, tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, weight.flatten(0, 1))


class RankModel(nn.Module):
    """tokens (B, S), weight (V, D) -> y (B, S, D)."""

    def forward(self, tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        local = tokens - dist.get_rank() * weight.shape[0]
        elsewhere = (local < 0) | (local >= weight.shape[0])
        y = F.embedding(local.masked_fill(elsewhere, 0), weight)
        y = y.masked_fill(elsewhere.unsqueeze(-1), 0)
        dist.all_reduce(y)
        return y


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [
        draws.integers(0, n.R * n.V, n.B, n.S, generator=generator),
        draws.normal(n.R, n.V, n.D, generator=generator),
    ]


def get_init_inputs() -> list[int]:
    return []


def get_cost(tokens: torch.Tensor, weight: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (tokens, the rows that they name, and y, once each) and no FLOPs."""
    rows = tokens.numel() + tokens.unique().numel()
    token_bytes = tokens.numel() * tokens.element_size()
    return token_bytes + rows * weight.shape[2] * weight.element_size(), 0
