"""Ten rounds of a sine, each one kernel: work in equal steps, for tests of the timer."""

import torch
from torch import nn

N = 1 << 18
RIGHT_TRIVIAL_ANSWERS = ()


class Model(nn.Module):
    def forward(self, x):
        for _ in range(10):
            x = torch.sin(x)
        return x


def get_inputs(generator, jitter=True):
    return [torch.randn(N, generator=generator)]


def get_init_inputs():
    return []
