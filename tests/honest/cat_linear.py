"""The reference's own two steps."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, ranks: int = 4, features: int = 32, outputs: int = 56) -> None:
        super().__init__()
        self.proj = nn.Linear(ranks * features, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(torch.cat(x.unbind(0), dim=-1))
