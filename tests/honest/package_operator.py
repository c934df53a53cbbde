"""The package's own operator."""

import torch
from torch import nn

from kernelbench_dist import ops


class ModelNew(nn.Module):
    def __init__(self, ranks: int = 4, features: int = 32, outputs: int = 56) -> None:
        super().__init__()
        self.proj = nn.Linear(ranks * features, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ops.all_gather_linear(x, self.proj.weight, self.proj.bias)
