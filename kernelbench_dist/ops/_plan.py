"""plan: which kernel a call would run, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a fused operator would be computed.

    Attributes:
        kernel: the kernel's name; "fallback" where torch's own operations run.
        reason: why this one, in a few words.
        launches: device kernels a call; None where that is torch's affair.
        tiles: the part of the output that one group of threads computes, as (rows, outputs); None
            where that is torch's affair.
        split: how many threads of a group (of "split": how many blocks) share out the inner
            dimension of its outputs; 1 is none.
    """

    kernel: str
    reason: str
    launches: int | None
    tiles: tuple[int, ...] | None
    split: int


def plan(
    operator: str, *args: Any, device: torch.device | str | None = None, **kwargs: Any
) -> Plan:
    """Say what `ops.<operator>(*args, **kwargs)` would run. Nothing is computed.

    Args:
        operator: the name of a function of `ops`, such as "all_gather_linear".
        *args, **kwargs: its arguments; meta tensors will do.
        device: plan for this device rather than for the tensors' own. For meta tensors the default
            is the CUDA device where there is one, else the CPU.

    Raises:
        ValueError: an operator that is not one of these.
        RuntimeError: arguments that the operator itself would refuse.

    >>> x, weight = torch.empty(4, 12, 0), torch.empty(56, 0)
    >>> plan("all_gather_linear", x, weight, device="cpu").kernel
    'fallback'
    """
    planners = _planners()
    if operator not in planners:
        raise ValueError(f"plan: operator {operator!r} is not one of {sorted(planners)}")
    if device is None:
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        device = tensors[0].device if tensors else "cpu"
        if tensors and tensors[0].is_meta:
            device = "cuda" if torch.cuda.is_available() else "cpu"
    return planners[operator](*args, **kwargs, device=torch.device(device))


def _planners() -> dict[str, Callable[..., Plan]]:
    # Imported late: each operator's file needs Plan from this one.
    from kernelbench_dist.ops._all_gather_linear import plan_all_gather_linear

    return {"all_gather_linear": plan_all_gather_linear}
