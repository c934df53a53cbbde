"""All-reduce of int8 numbers with a scale for each block: what is sent is a quarter of float32.

Formula:
    s[r, g] = max over l of |x[r, g, l]| / 127      (1 where all are 0)
    q[r, g, l] = round(x[r, g, l] / s[r, g])        (-127 to 127, half to even)
    y[g, l] = sum over r of s[r, g] q[r, g, l]

Shapes:
    x (R, G, L): row r is what rank r holds, G blocks of L numbers; y (G, L), the same on every
    rank. R, G and L vary.

    Inputs lie near the quantised values, at most 0.2 s off, and never near a half: else the last
    bit of x / s would decide about a whole step of y. Every block has its own power of two for s.

Where used:
    Data parallelism over slow links, and all-reduce of activations in tensor-parallel inference.

Source:
    Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
    arXiv:1610.02132, algorithm 1 (every rank sends its quantised gradient to all, and adds up what
    it receives); Dettmers et al., "LLM.int8(): 8-bit Matrix Multiplication for Transformers at
    Scale", arXiv:2208.07339, section 2 (the scale, and rounding to the nearest).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
G = 16  # blocks
L = 32  # numbers in a block

SIZES = {
    "tiny": {"R": 4, "G": 16, "L": 32},
    "small": {"R": 8, "G": 2048, "L": 256},
    "large": {"R": 8, "G": 16384, "L": 256},
    "awkward": {"R": 3, "G": 127, "L": 61},
}
VARIES = ("R", "G", "L")
OUTPUT = "same"
RIGHT_TRIVIAL_ANSWERS = ("ranks reversed",)


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x (..., L) -> whole numbers (..., L), still in x's dtype, and scales (..., 1)."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    scale = scale.masked_fill(scale == 0, 1)
    return (x / scale).round(), scale


class Model(nn.Module):
    """x (R, G, L) -> y (G, L)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, scale = quantise(x)
        return (q * scale).sum(0)


class RankModel(nn.Module):
    """x (G, L) -> y (G, L)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, scale = quantise(x)
        q = q.to(torch.int8)
        blocks, length = x.shape
        ranks = dist.get_world_size()
        all_q = q.new_empty(ranks * blocks, length)
        all_scales = scale.new_empty(ranks * blocks, 1)
        dist.all_gather_into_tensor(all_q, q)
        dist.all_gather_into_tensor(all_scales, scale)
        return (all_q.to(x.dtype) * all_scales).view(ranks, blocks, length).sum(0)


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    q = draws.integers(-126, 127, n.R, n.G, n.L, generator=generator)
    x = q + draws.uniform(-0.2, 0.2, n.R, n.G, n.L, generator=generator)
    # The largest of a block is 127 exactly, anywhere in it, with either sign.
    at = draws.integers(0, n.L, n.R, n.G, 1, generator=generator)
    sign = 2 * draws.integers(0, 2, n.R, n.G, 1, generator=generator) - 1
    x.scatter_(-1, at, 127.0 * sign)
    return [x * 2.0 ** draws.integers(-10, -3, n.R, n.G, 1, generator=generator)]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x and y, once each) and FLOPs (five an element)."""
    return (x.numel() + x[0].numel()) * x.element_size(), 5 * x.numel()
