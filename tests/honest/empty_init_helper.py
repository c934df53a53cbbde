"""A helper whose __init__ does nothing, and weights that are arranged at the first call."""

import torch
from torch import nn


class Packer:
    def __init__(self) -> None:
        pass

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.t().contiguous()


class ModelNew(nn.Module):
    def __init__(self, ranks: int = 4, features: int = 32, outputs: int = 56) -> None:
        super().__init__()
        self.proj = nn.Linear(ranks * features, outputs)
        self._packer = Packer()
        self._packed: torch.Tensor | None = None
        self._version = -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.proj.weight
        if self._packed is None or self._version != weight._version:
            self._packed = self._packer.pack(weight.detach()).to(x.device)
            self._version = weight._version
        return torch.addmm(self.proj.bias, torch.cat(x.unbind(0), dim=-1), self._packed)
