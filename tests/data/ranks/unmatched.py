"""For all_reduce_data_parallel: right, and rank 0 sends what nobody receives."""

import torch.distributed as dist
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 256, bias=False)

    def forward(self, x):
        y = self.linear(x)
        dist.all_reduce(y)
        if dist.get_rank() == 0:
            dist.isend(y.clone(), dst=1)
        return y / dist.get_world_size()
