"""Rank 0's x (B, 128) on every rank, through a Linear with a bias."""

import torch
import torch.distributed as dist
import torch.nn as nn
from kernelbench.distributed_collectives import default_device, is_distributed_run

WORLD_SIZE = 4
B = 6


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(128, 128)

    def forward(self, x):
        x = x.clone()
        if is_distributed_run():
            dist.broadcast(x, src=0)
        return self.linear(x)


def get_inputs():
    rows = popcorn_pri.jitter_int(B)  # noqa: F821
    return [torch.randn(rows, 128, device=default_device())]


def get_init_inputs():
    return []
