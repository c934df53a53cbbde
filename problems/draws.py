"""What get_inputs of the suite's problems is made of: sizes near the nominal ones, and values.

Values are drawn on the CPU and then moved to `default_device()`, so that a seed gives the same
numbers everywhere.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import torch

from kernelbench_dist.distributed_collectives import default_device, jitter_int
from kernelbench_dist.problems import _program

__all__ = ["integers", "normal", "sizes", "uniform"]


def sizes(
    names: Mapping[str, Any], generator: torch.Generator | None = None, jitter: bool = True
) -> types.SimpleNamespace:
    """A problem's sizes for one draw: those that VARIES names near their nominal values.

    names: globals() of the problem's file. Its sizes are the integers in capitals.

    >>> n = sizes({"B": 100, "D": 7, "VARIES": ("B",)}, torch.Generator().manual_seed(0))
    >>> n.D, 85 <= n.B <= 115
    (7, True)
    """
    varies = names.get("VARIES", ()) if jitter else ()
    return types.SimpleNamespace(
        **{
            name: jitter_int(value, generator=generator) if name in varies else value
            for name, value in _program.counts(names).items()
        }
    )


def normal(*shape: int, generator: torch.Generator | None = None) -> torch.Tensor:
    """Standard normal float32."""
    return torch.randn(shape, generator=generator, device="cpu").to(default_device())


def uniform(
    low: float, high: float, *shape: int, generator: torch.Generator | None = None
) -> torch.Tensor:
    """float32, uniform in [low, high)."""
    values = torch.rand(shape, generator=generator, device="cpu")
    return values.mul_(high - low).add_(low).to(default_device())


def integers(
    low: int,
    high: int,
    *shape: int,
    dtype: torch.dtype = torch.int64,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Integers in [low, high)."""
    values = torch.randint(low, high, shape, dtype=dtype, generator=generator, device="cpu")
    return values.to(default_device())
