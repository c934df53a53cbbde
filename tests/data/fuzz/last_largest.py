"""For first_largest: the last of equal elements, not the first."""

from __future__ import annotations

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.columns = columns

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.columns - 1 - x.flip(1).argmax(dim=1)
