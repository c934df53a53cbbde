"""A fixed permutation of columns that are dealt to virtual ranks.

Formula:
    y[b, j] = x[b, perm[j]]
    perm: a permutation of the N = R * C columns from a fixed seed, a buffer.

Shapes:
    x and y (R, B, C): rank r holds columns r*C to r*C + C - 1 of the matrix with B rows and N
    columns, all rows of them. B varies. R and C do not: the permutation fixes them.

Where used:
    Shuffling features, channels or experts over ranks: each rank sends every other the columns
    that are to be there, an all-to-all of unlike parts.

Source:
    Zhang et al., "ShuffleNet: An Extremely Efficient Convolutional Neural Network for Mobile
    Devices", arXiv:1707.01083, section 3.1 (the permutation); MPI: A Message-Passing Interface
    Standard, version 3.1, section 5.8, MPI_ALLTOALLV (how it moves).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 10  # rows
C = 9  # columns on one rank

SIZES = {
    "tiny": {"R": 4, "B": 10, "C": 9},
    "small": {"R": 8, "B": 512, "C": 512},
    "large": {"R": 8, "B": 4096, "C": 2048},
    "awkward": {"R": 3, "B": 127, "C": 61},
}
VARIES = ("B",)
OUTPUT = "stacked"


class Model(nn.Module):
    """x (R, B, C) -> y (R, B, C)."""

    def __init__(self, ranks: int, columns: int) -> None:
        super().__init__()
        seeded = torch.Generator().manual_seed(27)
        perm = torch.randperm(ranks * columns, generator=seeded, device="cpu")
        self.register_buffer("perm", perm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        matrix = torch.cat(x.unbind(0), dim=1)
        return torch.stack(matrix[:, self.perm].chunk(x.shape[0], dim=1))


class RankModel(Model):
    """x (B, C) -> y (B, C)."""

    def __init__(self, ranks: int, columns: int) -> None:
        super().__init__(ranks, columns)
        rank = dist.get_rank()
        wanted = self.perm.view(ranks, columns)  # row r: the columns that rank r ends up with
        owner = wanted // columns
        mine = owner == rank
        self.send_counts = mine.sum(1).tolist()
        self.receive_counts = owner[rank].bincount(minlength=ranks).tolist()
        # What to send, by destination; and where, of what arrives by source, each column lies.
        self.register_buffer("send", wanted[mine] - rank * columns, persistent=False)
        place = owner[rank].argsort(stable=True).argsort()
        self.register_buffer("place", place, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sent = x.t()[self.send].contiguous()
        received = torch.empty_like(x.t(), memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, sent, self.receive_counts, self.send_counts)
        return received[self.place].t().contiguous()


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.B, n.C, generator=generator)]


def get_init_inputs() -> list[int]:
    return [R, C]


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs."""
    return 2 * x.numel() * x.element_size(), 0
