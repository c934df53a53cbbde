"""The K largest scores over all ranks, and where they are.

Formula:
    Row b of all scores is concat(x[0, b], ..., x[R-1, b]); column v of rank r has index r*V + v.
    values[b], indices[b] = the K largest of row b, in falling order; of equal scores the one with
    the smallest index comes first.

Shapes:
    x (R, B, V): row r is what rank r holds, V of the R*V columns; values (B, K) and indices (B, K)
    int64, the same on every rank. R, B and V vary; K does not, as it is the width of a beam.
    Scores are whole numbers, so that many are equal.

Where used:
    Beam search and top-k sampling where the vocabulary is split among ranks; search in an index of
    vectors that is split.

Source:
    Johnson et al., "Billion-scale similarity search with GPUs", arXiv:1702.08734, section 5.4
    (sharding: every GPU selects from its own part, and the results are merged).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 8  # rows
V = 40  # columns of one rank
K = 5  # how many are wanted

SIZES = {
    "tiny": {"R": 4, "B": 8, "V": 40, "K": 5},
    "small": {"R": 8, "B": 64, "V": 4096, "K": 8},
    "large": {"R": 8, "B": 256, "V": 16384, "K": 8},
    "awkward": {"R": 3, "B": 31, "V": 127, "K": 7},
}
VARIES = ("R", "B", "V")
OUTPUT = "same"


def largest(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest on the last dim and their indices. A stable sort, as topk breaks ties at will."""
    values, indices = scores.sort(dim=-1, descending=True, stable=True)
    return values[..., :count].contiguous(), indices[..., :count].contiguous()


class Model(nn.Module):
    """x (R, B, V) -> values (B, K), indices (B, K)."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return largest(torch.cat(x.unbind(0), dim=-1), self.count)


class RankModel(Model):
    """x (B, V) -> values (B, K), indices (B, K)."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, columns = largest(x, self.count)
        columns += dist.get_rank() * x.shape[-1]
        # In the order of ranks, and so equal scores in the order of their indices.
        values, columns = self.gather(values), self.gather(columns)
        values, at = largest(values, self.count)
        return values, columns.gather(-1, at)

    def gather(self, mine: torch.Tensor) -> torch.Tensor:
        """(B, k) on each rank -> (B, R*k)."""
        whole = mine.new_empty(dist.get_world_size() * len(mine), mine.shape[-1])
        dist.all_gather_into_tensor(whole, mine)
        return torch.cat(whole.chunk(dist.get_world_size()), dim=-1)


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.R, n.B, n.V, generator=generator).mul_(8).round_()]


def get_init_inputs() -> list[int]:
    return [K]


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x, values and indices, once each) and FLOPs (a comparison a score)."""
    rows = x.shape[1]
    return x.numel() * x.element_size() + rows * K * (x.element_size() + 8), x.numel()
