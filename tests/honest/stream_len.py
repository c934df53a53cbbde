"""Variables with the names of what is suspicious elsewhere."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, ranks: int = 4, features: int = 32, outputs: int = 56) -> None:
        super().__init__()
        self.proj = nn.Linear(ranks * features, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stream_len, event, seed = x.shape[1], x.shape[0], 0
        cache = [x[rank] for rank in range(event)]
        eval_exec = torch.cat(cache, dim=-1)[seed:stream_len]
        return self.proj(eval_exec)
