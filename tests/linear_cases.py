"""What the tests of all_gather_linear share."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(torch.cat(x.unbind(0), -1), weight, bias)


def factor(terms: int) -> float:
    """The c of assert_matches: one rounding, and those of a sum in its accumulator's type."""
    return 4 + 0.3 * math.sqrt(terms)


def random_call(
    R: int,
    B: int,
    H: int,
    K: int,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> list[Tensor]:
    """x (R, B, H), weight (K, R*H) and bias (K,), the same numbers on every device."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(size, generator=generator, dtype=torch.float64).to(device, dtype)
        for size in ((R, B, H), (K, R * H), (K,))
    ]
