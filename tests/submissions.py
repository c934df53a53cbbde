"""Submissions as text, for tests of the judge."""

from __future__ import annotations

import textwrap

_GATHER = """
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, ranks, features, outputs):
        super().__init__()
        self.proj = nn.Linear(ranks * features, outputs)
        self.calls = 0

    def right(self, x):
        return self.proj(torch.cat(x.unbind(0), -1))

    def forward(self, x):
"""


def gather_linear(body: str = "return self.right(x)", before: str = "") -> str:
    """A submission for problem 47 whose forward is `body`; `self.right(x)` is the right answer."""
    return before + _GATHER + textwrap.indent(textwrap.dedent(body), "        ") + "\n"


def problem(forward: str, inputs: str = "torch.randn(4, 3)", more: str = "") -> str:
    """A problem without parameters: x -> `forward`, x drawn by `inputs`."""
    return f"""
import torch
from torch import nn

{more}

class Model(nn.Module):
    def forward(self, x):
        return {forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


def answer(forward: str) -> str:
    """A submission without parameters: x -> `forward`."""
    return f"""
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return {forward}
"""
