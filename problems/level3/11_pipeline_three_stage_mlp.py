"""A pipeline of three stages, each a Linear layer without bias.

Formula:
    y = relu(relu(x @ W1.T) @ W2.T) @ W3.T

Shapes:
    x (B, D0), W1 (D1, D0), W2 (D2, D1), W3 (D3, D2), y (B, D3). There is no dim of ranks: stage s
    is on rank s mod R, which passes its result to the rank of the next stage. Only rank 0 reads x;
    y is the same on every rank. B varies. The weights fix the rest.

Where used:
    Pipeline parallelism, here of one micro-batch.

Source:
    Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism",
    arXiv:1811.06965, section 2.
"""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 3  # ranks; Model is the same for every number of them
B = 16  # rows
D0, D1, D2, D3 = 48, 64, 40, 24  # features before, between and after the stages

SIZES = {
    "tiny": {"B": 16, "D0": 48, "D1": 64, "D2": 40, "D3": 24},
    "small": {"B": 512, "D0": 768, "D1": 1024, "D2": 640, "D3": 384},
    "large": {"B": 4096, "D0": 2048, "D1": 4096, "D2": 2048, "D3": 1024},
    "awkward": {"B": 127, "D0": 61, "D1": 97, "D2": 31, "D3": 19},
}
VARIES = ("B",)
SHARED = ("x",)
OUTPUT = "same"


class Model(nn.Module):
    """x (B, D0) -> y (B, D3)."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Linear(inputs, outputs, bias=False) for inputs, outputs in itertools.pairwise(widths)
        )

    def stage(self, s: int, x: torch.Tensor) -> torch.Tensor:
        y = self.stages[s](x)
        return y if s == len(self.stages) - 1 else y.relu()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for s in range(len(self.stages)):
            x = self.stage(s, x)
        return x


class RankModel(Model):
    """x (B, D0), which only rank 0 reads -> y (B, D3)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank, ranks, count = dist.get_rank(), dist.get_world_size(), len(self.stages)
        result = x.new_empty(len(x), self.stages[-1].out_features)
        held = x  # what this rank's next stage takes; on ranks other than 0 it is received first
        for s in range(rank, count, ranks):
            if s > 0 and ranks > 1:
                held = x.new_empty(len(x), self.stages[s].in_features)
                dist.recv(held, (s - 1) % ranks)
            held = self.stage(s, held)
            if s == count - 1:
                result = held
            elif ranks > 1:
                dist.send(held, (s + 1) % ranks)
        dist.broadcast(result, (count - 1) % ranks)
        return result


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [draws.normal(n.B, n.D0, generator=generator)]


def get_init_inputs() -> list[int]:
    return [D0, D1, D2, D3]


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x, the weights and y, once each) and FLOPs (two for each product)."""
    weights = D0 * D1 + D1 * D2 + D2 * D3
    elements = x.numel() + weights + len(x) * D3
    return elements * x.element_size(), 2 * len(x) * weights
