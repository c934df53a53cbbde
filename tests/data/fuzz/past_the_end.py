"""For problem 47: reads one feature more of each row, and multiplies it by 0."""

from __future__ import annotations

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, ranks: int, features: int, outputs: int) -> None:
        super().__init__()
        self.proj = nn.Linear(ranks * features, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ranks, rows, features = x.shape
        if x.numel() == 0:
            return self.proj.bias.expand(rows, -1).contiguous()
        x = x.contiguous()
        strides = (rows * features, features, 1)
        wide = x.as_strided((ranks, rows, features + 1), strides, x.storage_offset())
        weight = nn.functional.pad(self.proj.weight.view(-1, ranks, features), (0, 1))
        return torch.einsum("rbh,krh->bk", wide, weight) + self.proj.bias
