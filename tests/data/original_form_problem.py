"""A problem in the original system's form: its imports, its global helper object, no annotations.

The sum over virtual ranks of x squared: x (R, B, D) -> (B, D).
"""

import kernelbench.distributed_collectives
import torch
import torch.nn as nn
from kernelbench.distributed_collectives import default_device

R = 4
B = 16
D = 48


class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return self.scale * (x * x).sum(dim=0)


def get_inputs():
    import kernelbench.distributed_collectives as lazily
    from kernelbench import distributed_collectives as from_the_top

    assert lazily is from_the_top is kernelbench.distributed_collectives
    p = popcorn_pri  # noqa: F821
    rows, width = p.jitter_int(B), p.jitter_int(D, align=8)
    return [torch.randn(R, rows, width, device=default_device())]


def get_init_inputs():
    return [2.0]
