"""All-reduce, then the residual is added, then RMSNorm.

Formula:
    h = residual + x[0] + ... + x[R-1]
    y = h / sqrt(mean(h**2, over the last dim) + 1e-6) * weight

Shapes:
    x (R, B, D): row r is rank r's part of a sum; residual (B, D): every rank has it whole; weight
    (D,), a parameter; y and h, both returned, (B, D) and the same on every rank. R and B vary. D
    does not: the weight fixes it.

Where used:
    Tensor-parallel inference: what follows each row-parallel layer of a transformer. Serving
    engines (TensorRT-LLM, vLLM, FlashInfer) have one kernel for it; h is the next residual.

Source:
    TensorRT-LLM, AllReduceFusionOp.RESIDUAL_RMS_NORM; the norm: Zhang and Sennrich, "Root Mean
    Square Layer Normalization", arXiv:1910.07467, section 4.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 10  # rows
D = 48  # features

SIZES = {
    "tiny": {"R": 4, "B": 10, "D": 48},
    "small": {"R": 8, "B": 128, "D": 4096},
    "large": {"R": 8, "B": 2048, "D": 4096},
    "awkward": {"R": 3, "B": 127, "D": 61},
}
VARIES = ("R", "B")
SHARED = ("residual",)
OUTPUT = "same"
RIGHT_TRIVIAL_ANSWERS = ("ranks reversed", "the mean over ranks")  # of x: the sum is the same


class Model(nn.Module):
    """x (R, B, D), residual (B, D) -> y (B, D), h (B, D)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(features, eps=1e-6)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x.sum(0) + residual
        return self.norm(h), h


class RankModel(Model):
    """x (B, D), residual (B, D) -> y (B, D), h (B, D)."""

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x.clone()
        dist.all_reduce(total)
        h = total + residual
        return self.norm(h), h


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [
        draws.normal(n.R, n.B, n.D, generator=generator),
        draws.normal(n.B, n.D, generator=generator),
    ]


def get_init_inputs() -> list[int]:
    return [D]


def get_cost(x: torch.Tensor, residual: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x, residual, weight, y and h, once each) and FLOPs.

    The FLOPs of an element: one addition a rank, two for the sum of squares, two for the scales.
    """
    elements = x.numel() + 3 * residual.numel() + residual.shape[1]
    return elements * x.element_size(), x.numel() + 4 * residual.numel()
