"""Rank 0's x (B, 64) through two stages, on ranks 0 and 1; every rank gets the result (B, 48)."""

import torch
import torch.distributed as dist
import torch.nn as nn
from kernelbench.distributed_collectives import default_device, get_rank, is_distributed_run

WORLD_SIZE = 4
B = 12


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 96)
        self.second = nn.Linear(96, 48)

    def forward(self, x):
        if not is_distributed_run():
            return self.second(torch.relu(self.first(x)))
        hidden = x.new_empty(x.shape[0], 96)
        y = x.new_empty(x.shape[0], 48)
        if get_rank() == 0:
            dist.send(torch.relu(self.first(x)), dst=1)
        elif get_rank() == 1:
            dist.recv(hidden, src=0)
            y = self.second(hidden)
        dist.broadcast(y, src=1)
        return y


def get_inputs():
    rows = popcorn_pri.jitter_int(B)  # noqa: F821
    return [torch.randn(rows, 64, device=default_device())]


def get_init_inputs():
    return []
