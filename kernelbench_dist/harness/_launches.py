"""What one call does on the device, or in torch's operators, as the profiler saw it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode


def of_call(call: Callable[[], Any], device: torch.device) -> dict[str, Any]:
    """On a GPU its kernels, copies and fills: [name, us] each. Everywhere its torch operators.

    "kernels" is None on a CPU, and where the profiler recorded no device activity.
    """
    call()
    with _Operators() as operators:
        call()
    found: dict[str, Any] = {"operators": operators.names, "kernels": None}
    if device.type != "cuda":
        return found
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        call()
        torch.cuda.synchronize()
    activity = [
        (event.name, event.device_time_total)
        for event in recorded.events() or []
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    copies = [name for name, _ in activity if name.startswith("Memcpy")]
    fills = [name for name, _ in activity if name.startswith("Memset")]
    kernels = [[n, us] for n, us in activity if not n.startswith(("Memcpy", "Memset"))]
    if activity:
        found.update(kernels=kernels, copies=len(copies), fills=len(fills))
    return found


class _Operators(TorchDispatchMode):
    """The names of the operators that torch dispatches, compiled code's calls among them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))
