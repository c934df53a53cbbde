"""Clipping of sharded gradients by their global norm.

Formula:
    norm = sqrt(the sum of the squares of all elements of matrix and vector, on all ranks)
    c = min(1, MAX_NORM / (norm + 1e-6))
    returned: norm, c * matrix, c * vector

Shapes:
    matrix (R, B, D) and vector (R, N): the gradients of two parameters; row r is the shard that
    rank r holds. norm () is the same on every rank. R, B, D and N vary.

Where used:
    Training with sharded parameters (FSDP, ZeRO): each rank has a part of every gradient, and all
    ranks must scale theirs by the same factor.

Source:
    Pascanu et al., "On the difficulty of training recurrent neural networks", arXiv:1211.5063,
    algorithm 1; the constant 1e-6 as in torch.nn.utils.clip_grad_norm_.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 16  # rows of the matrix on one rank
D = 48  # columns of the matrix
N = 10  # elements of the vector on one rank
MAX_NORM = 1.0

SIZES = {
    "tiny": {"R": 4, "B": 16, "D": 48, "N": 10},
    "small": {"R": 8, "B": 256, "D": 2048, "N": 256},
    "large": {"R": 8, "B": 2048, "D": 4096, "N": 2048},
    "awkward": {"R": 3, "B": 127, "D": 61, "N": 17},
}
VARIES = ("R", "B", "D", "N")
OUTPUT = ("same", "stacked", "stacked")


def clip_factor(norm: torch.Tensor) -> torch.Tensor:
    return (MAX_NORM / (norm + 1e-6)).clamp(max=1)


class Model(nn.Module):
    """matrix (R, B, D), vector (R, N) -> norm (), and both clipped."""

    def forward(
        self, matrix: torch.Tensor, vector: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        norms = [torch.linalg.vector_norm(t) for t in (matrix, vector)]
        norm = torch.linalg.vector_norm(torch.stack(norms))
        factor = clip_factor(norm)
        return norm, factor * matrix, factor * vector


class RankModel(nn.Module):
    """matrix (B, D), vector (N,) -> norm (), and both clipped."""

    def forward(
        self, matrix: torch.Tensor, vector: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        squares = matrix.square().sum() + vector.square().sum()
        dist.all_reduce(squares)
        norm = squares.sqrt()
        factor = clip_factor(norm)
        return norm, factor * matrix, factor * vector


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    """The norm is about 0.5 to 2 times MAX_NORM, so that some draws are clipped and some not."""
    n = draws.sizes(globals(), generator, jitter)
    norm = draws.uniform(0.5 * MAX_NORM, 2 * MAX_NORM, generator=generator)
    scale = norm * (n.R * (n.B * n.D + n.N)) ** -0.5
    matrix = draws.normal(n.R, n.B, n.D, generator=generator)
    return [scale * matrix, scale * draws.normal(n.R, n.N, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(matrix: torch.Tensor, vector: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (inputs and outputs, once each) and FLOPs."""
    elements = matrix.numel() + vector.numel()
    return (2 * elements + 1) * matrix.element_size(), 3 * elements
