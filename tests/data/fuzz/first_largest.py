"""Where the largest element of each row stands, the first of equal ones.

Formula:
    y[b] = the least h for which x[b, h] is the largest of x[b]

Shapes:
    x (B, H) float32; y (B,) int64. Both sizes vary.
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
        if x.shape != (self.rows, self.columns):
            raise ValueError(f"x is {tuple(x.shape)}, not {(self.rows, self.columns)}")
        return x.argmax(dim=1)


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    return [torch.randn(B, H, generator=generator)]


def get_init_inputs() -> list[int]:
    return [B, H]
