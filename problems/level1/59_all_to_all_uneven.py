"""All-to-all of uneven parts: how much a rank sends another depends on the two.

Formula:
    n[s, r] = B * (1 + (r - s) mod R) rows go from rank s to rank r
    x[s] = the rows for ranks 0, 1, ..., R-1, one part below the other
    y[r] = the rows from ranks 0, 1, ..., R-1, one part below the other

Shapes:
    x (R, M, D): row s is what rank s holds; y (R, M, D): row r is what rank r ends up with. R, B
    and D vary. M = B * R * (R + 1) / 2, for each rank sends, and receives, parts of B, 2*B, ...,
    R*B rows, in another order.

Where used:
    Mixture of experts without dropped tokens, and tables of embeddings on ranks of their own: a
    rank has more for some of the others than for the rest.

Source:
    MPI: A Message-Passing Interface Standard, version 3.1, section 5.8, MPI_ALLTOALLV. PyTorch
    documentation, torch.distributed.all_to_all_single, the example with split sizes.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 3  # rows in the smallest part
D = 48  # features

SIZES = {
    "tiny": {"R": 4, "B": 3, "D": 48},
    "small": {"R": 8, "B": 8, "D": 1024},
    "large": {"R": 8, "B": 64, "D": 4096},
    "awkward": {"R": 3, "B": 31, "D": 61},
}
VARIES = ("R", "B", "D")
OUTPUT = "stacked"


class Model(nn.Module):
    """x (R, M, D) -> y (R, M, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ranks, rows, _ = x.shape
        counts = _row_counts(ranks, rows)
        parts = [held.split(n) for held, n in zip(x, counts, strict=True)]
        return torch.stack([torch.cat([sent[r] for sent in parts]) for r in range(ranks)])


class RankModel(nn.Module):
    """x (M, D) -> y (M, D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank = dist.get_rank()
        counts = _row_counts(dist.get_world_size(), len(x))
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x, [sent[rank] for sent in counts], counts[rank])
        return y


def _row_counts(ranks: int, rows: int) -> list[list[int]]:
    """n[s][r]: how many of the M rows of rank s are for rank r."""
    least = rows * 2 // (ranks * (ranks + 1))
    return [[least * (1 + (r - s) % ranks) for r in range(ranks)] for s in range(ranks)]


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.B * n.R * (n.R + 1) // 2, n.D, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs."""
    return 2 * x.numel() * x.element_size(), 0
