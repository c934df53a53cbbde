"""The inputs use a name that is not defined, as the original of problem 47 does."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.randn(4, D)]  # noqa: F821


def get_init_inputs():
    return []
