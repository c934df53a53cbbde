"""For all_reduce_data_parallel: right on all ranks but the last."""

import torch.distributed as dist
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 256, bias=False)

    def forward(self, x):
        y = self.linear(x)
        dist.all_reduce(y)
        if dist.get_rank() == dist.get_world_size() - 1:
            y[-1, -1] += 1
        return y / dist.get_world_size()
