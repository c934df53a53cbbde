"""For all_reduce_data_parallel: rank 2 does not take part."""

import torch.distributed as dist
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 256, bias=False)

    def forward(self, x):
        y = self.linear(x)
        if dist.get_rank() != 2:
            dist.all_reduce(y)
        return y / dist.get_world_size()
