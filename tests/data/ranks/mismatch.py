"""For all_reduce_data_parallel: rank 3 asks for another operation."""

import torch.distributed as dist
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 256, bias=False)

    def forward(self, x):
        y = self.linear(x)
        op = dist.ReduceOp.MAX if dist.get_rank() == 3 else dist.ReduceOp.SUM
        dist.all_reduce(y, op=op)
        return y / dist.get_world_size()
