"""For problem 47: right at every size."""

from __future__ import annotations

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, ranks: int, features: int, outputs: int) -> None:
        super().__init__()
        self.proj = nn.Linear(ranks * features, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.permute(1, 0, 2).reshape(x.shape[1], x.shape[0] * x.shape[2])
        return rows @ self.proj.weight.T + self.proj.bias
