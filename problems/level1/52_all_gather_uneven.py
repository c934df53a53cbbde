"""All-gather of rows where every rank has another number of them, padded to the largest.

Formula:
    y = the rows x[0, :n[0]], x[1, :n[1]], ..., x[R-1, :n[R-1]], one below the other
    n[r] = M - r * M // (2 * R): rank 0 has M rows, and each further rank fewer

Shapes:
    x (R, M, D): row r is what rank r holds, n[r] rows and padding of any value; y (n[0] + ... +
    n[R-1], D), the same on every rank. R, M and D vary.

Where used:
    Evaluation, and sequences of unlike lengths: results of all ranks are put together, and their
    numbers differ. As a program: all ranks send as many rows, and the padding is cut away.

Source:
    MPI: A Message-Passing Interface Standard, version 3.1, section 5.7, MPI_ALLGATHERV.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
M = 16  # rows on the rank that has most
D = 48  # features

SIZES = {
    "tiny": {"R": 4, "M": 16, "D": 48},
    "small": {"R": 8, "M": 512, "D": 1024},
    "large": {"R": 8, "M": 8192, "D": 1024},
    "awkward": {"R": 3, "M": 127, "D": 61},
}
VARIES = ("R", "M", "D")
OUTPUT = "same"


class Model(nn.Module):
    """x (R, M, D) -> y (the sum of the n[r], D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ranks, most, _ = x.shape
        return torch.cat([x[r, :n] for r, n in enumerate(_row_counts(ranks, most))])


class RankModel(Model):
    """x (M, D) -> y (the sum of the n[r], D)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ranks = dist.get_world_size()
        most, features = x.shape
        gathered = x.new_empty(ranks * most, features)
        dist.all_gather_into_tensor(gathered, x)
        return super().forward(gathered.view(ranks, most, features))


def _row_counts(ranks: int, most: int) -> list[int]:
    """n: how many rows each rank has."""
    return [most - rank * most // (2 * ranks) for rank in range(ranks)]


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.M, n.D, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (the rows of x that are no padding, and y, once each) and FLOPs."""
    ranks, most, features = x.shape
    return 2 * sum(_row_counts(ranks, most)) * features * x.element_size(), 0
