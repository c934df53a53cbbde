"""Arguments and results as plain JSON beside a list of tensors, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch


def pack(value: Any, tensors: list[torch.Tensor]) -> Any:
    """JSON for `value`; its tensors are appended to `tensors`, and their places stand for them.

    Raises TypeError for what is no tensor, number, string, None, or list, tuple or dict of these.
    """
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, (torch.dtype, torch.device)):
        return {type(value).__name__: str(value).removeprefix("torch.")}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [pack(item, tensors) for item in value]}
    if isinstance(value, Mapping):
        return {"dict": [[pack(k, tensors), pack(v, tensors)] for k, v in value.items()]}
    raise TypeError(f"{type(value).__name__} values cannot be handed to another process")


def unpack(packed: Any, tensors: list[torch.Tensor]) -> Any:
    """The inverse of `pack`. A named tuple comes back as a tuple."""
    if not isinstance(packed, dict):
        return packed
    ((kind, value),) = packed.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "float":
        return float(value)
    if kind == "dtype":
        return getattr(torch, value)
    if kind == "device":
        return torch.device(value)
    if kind == "dict":
        return {unpack(k, tensors): unpack(v, tensors) for k, v in value}
    items = [unpack(item, tensors) for item in value]
    return items if kind == "list" else tuple(items)


def map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """`value` with every tensor in it replaced by `change` of it."""
    tensors: list[torch.Tensor] = []
    packed = pack(value, tensors)
    return unpack(packed, [change(t) for t in tensors])


def named_leaves(value: Any, name: str) -> list[tuple[str, Any]]:
    """The leaves of lists, tuples and dicts with names such as "output[1]['mean']"."""
    if isinstance(value, Mapping):
        return [leaf for k, v in value.items() for leaf in named_leaves(v, f"{name}[{k!r}]")]
    if isinstance(value, (list, tuple)):
        return [leaf for i, v in enumerate(value) for leaf in named_leaves(v, f"{name}[{i}]")]
    return [(name, value)]
