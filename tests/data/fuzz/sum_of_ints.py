"""The sum of each row of 32-bit integers, in 64 bits.

Shapes:
    x (B, H) int32; y (B,) int64. Both sizes vary.
"""

from __future__ import annotations

import torch
from torch import nn

B = 6
H = 20

SIZES = {"tiny": {"B": 6, "H": 20}}
VARIES = ("B", "H")


class Model(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.rows, self.columns = rows, columns

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=1)


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    return [torch.randint(-9, 10, (B, H), generator=generator, dtype=torch.int32)]


def get_init_inputs() -> list[int]:
    return [B, H]
