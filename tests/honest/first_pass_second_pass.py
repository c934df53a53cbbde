"""Words that mean something else: pass, skip, cache, stream."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, ranks: int = 4, features: int = 32, outputs: int = 56) -> None:
        super().__init__()
        self.proj = nn.Linear(ranks * features, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """First pass: gather. Second pass: multiply. Nothing is cached, no stream is used.

        It does not call torch.cuda.synchronize = x, os._exit(0), gc.get_objects() or time.sleep.
        """
        # first pass / second pass; except Exception: pass; "#"
        hint = "#"  # os._exit(0)
        gathered = torch.cat(x.unbind(0), dim=-1)
        return self.proj(gathered) if hint else gathered
