"""The mean over ranks of x W^T: each rank has rows x (B, 256) of its own; all have the same W."""

import torch
import torch.distributed as dist
import torch.nn as nn
from kernelbench.distributed_collectives import default_device, is_distributed_run

WORLD_SIZE = 4
B = 8


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 256, bias=False)

    def forward(self, x):
        y = self.linear(x)
        if is_distributed_run():
            dist.all_reduce(y, op=dist.ReduceOp.SUM)
            y = y / dist.get_world_size()
        return y


def get_inputs():
    rows = popcorn_pri.jitter_int(B)  # noqa: F821
    return [torch.randn(rows, 256, device=default_device())]


def get_init_inputs():
    return []
