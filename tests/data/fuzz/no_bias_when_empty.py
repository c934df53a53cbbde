"""For problem 47: without the bias where there are no features."""

from __future__ import annotations

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, ranks: int, features: int, outputs: int) -> None:
        super().__init__()
        self.proj = nn.Linear(ranks * features, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ranks, rows, features = x.shape
        if features == 0:
            return x.new_zeros(rows, self.proj.out_features)
        return self.proj(x.permute(1, 0, 2).reshape(rows, ranks * features))
