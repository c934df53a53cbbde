"""For all_reduce_data_parallel: a reduce_scatter and an all_gather, on a group made beforehand."""

import torch.distributed as dist
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 256, bias=False)
        self.group = dist.new_group(list(range(dist.get_world_size())))

    def forward(self, x):
        y = self.linear(x).t().contiguous()
        mine = y.new_empty(y.shape[0] // dist.get_world_size(), y.shape[1])
        dist.reduce_scatter_tensor(mine, y, group=self.group)
        dist.all_gather_into_tensor(y, mine / dist.get_world_size(), group=self.group)
        return y.t().contiguous()
