"""A module in a worker: built, given its inputs in guarded memory, and run. For both sides."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from kernelbench_dist.harness import _memory, _tree


@dataclass
class Inputs:
    """One draw, in this process's memory."""

    value: Any
    """the arguments of forward: a list"""
    leaves: list[torch.Tensor]
    """the tensors in it"""
    cotangents: list[torch.Tensor] = field(default_factory=list)
    """what backward starts from, one for each floating-point output"""
    guards: list[_memory.Guarded] = field(default_factory=list)
    """of the leaves; none where they are in ordinary memory"""

    def unchanged(self) -> bool:
        return all(guard.unchanged() for guard in self.guards)


def place(
    packed: Any,
    tensors: Sequence[torch.Tensor],
    device: torch.device,
    *,
    layout: str = "contiguous",
    cotangents: Sequence[torch.Tensor] = (),
) -> Inputs:
    """The arguments with every tensor in guarded memory on the device.

    layout: one of `_memory.LAYOUTS`, or "bare" for ordinary memory that ends with the tensor, so
    that compute-sanitizer sees what reads beyond it.
    """
    guards = [] if layout == "bare" else [_memory.Guarded(t, device, layout) for t in tensors]
    leaves = [guard.tensor for guard in guards] or [t.to(device, copy=True) for t in tensors]
    cotangents = [c.to(device, copy=True) for c in cotangents]
    return Inputs(_tree.unpack(packed, leaves), leaves, cotangents, guards)


def cast(value: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Floating-point tensors in `dtype`, complex ones in its partner, others as they are."""
    if dtype is None or not (value.is_floating_point() or value.is_complex()):
        return value
    if value.is_complex():
        return value.to(torch.complex128 if dtype == torch.float64 else value.dtype)
    return value.to(dtype)


def build(
    cls: type[torch.nn.Module],
    args: Sequence[Any],
    device: torch.device,
    dtype: torch.dtype | None,
) -> torch.nn.Module:
    """An instance on the device, its floating-point parameters and buffers in `dtype`."""
    module = cls(*args)
    module = module.to(device)
    return module if dtype is None else module.to(dtype)


def fixed_sizes(cls: type[torch.nn.Module], args: Sequence[Any]) -> bool:
    """Whether the class takes no arguments though there are some: its sizes are its own."""
    signature = inspect.signature(cls)
    with contextlib.suppress(TypeError):
        signature.bind(*args)
        return False
    with contextlib.suppress(TypeError):
        signature.bind()
        return True
    return False


def run(module: torch.nn.Module, inputs: Inputs, *, backward: bool) -> list[tuple[str, Any]]:
    """Outputs by name, and with `backward` the gradients of inputs and parameters after them.

    Outputs are copied at once, on the current stream: what a side stream or a thread adds later is
    not in the copy.
    """
    if not backward:
        leaves = _tree.named_leaves(_forward(module, inputs), "output")
        return [(name, snapshot(leaf)) for name, leaf in leaves]
    outputs, grads = _forward_backward(module, inputs, then=snapshot)
    return outputs + [(name, snapshot(grad)) for name, grad in grads]


def call(module: torch.nn.Module, inputs: Inputs, *, backward: bool) -> list[Any]:
    """As `run`, with the outputs themselves, for a call that is timed."""
    if not backward:
        return [leaf for _, leaf in _tree.named_leaves(_forward(module, inputs), "output")]
    outputs, grads = _forward_backward(module, inputs, then=lambda leaf: leaf)
    return [leaf for _, leaf in outputs + grads]


def _forward(module: torch.nn.Module, inputs: Inputs) -> Any:
    with torch.no_grad():
        return module(*inputs.value)


def _forward_backward(
    module: torch.nn.Module, inputs: Inputs, then: Callable[[Any], Any]
) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Outputs, with `then` done to each as soon as it is there, and gradients, by name."""
    tensors = inputs.leaves
    leaves = {id(t): t.detach().requires_grad_(t.is_floating_point()) for t in tensors}
    value = _tree.map_tensors(inputs.value, lambda t: leaves[id(t)])
    with torch.enable_grad():
        outputs = _tree.named_leaves(module(*value), "output")
        kept = [(name, then(leaf)) for name, leaf in outputs]
        rounded = [
            leaf
            for _, leaf in outputs
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        ]
        wanted = [
            (f"grad of input {i}", leaves[id(t)])
            for i, t in enumerate(tensors)
            if t.is_floating_point()
        ]
        wanted += [(f"grad of {n}", p) for n, p in module.named_parameters() if p.requires_grad]
        cotangents = inputs.cotangents or [torch.ones_like(leaf) for leaf in rounded]
        grads = torch.autograd.grad(
            rounded,
            [t for _, t in wanted],
            [c.to(leaf.dtype) for c, leaf in zip(cotangents, rounded, strict=True)],
            allow_unused=True,
        )
    pairs = zip(wanted, grads, strict=True)
    return kept, [(n, torch.zeros_like(t) if g is None else g) for (n, t), g in pairs]


def snapshot(leaf: Any) -> Any:
    """A copy of a plain tensor; anything else as it is."""
    if type(leaf) is torch.Tensor or type(leaf) is torch.nn.Parameter:
        return Copy(leaf)
    return leaf


class Copy:
    """The values of an output at one moment, with what the output itself was."""

    def __init__(self, tensor: torch.Tensor) -> None:
        source = tensor.detach()
        if source.is_meta:  # it has no values
            source = torch.empty(tensor.shape, dtype=tensor.dtype)
        self.values = source.clone(memory_format=torch.contiguous_format)
        self.device = str(tensor.device.type)
        held = tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else 0
        self.is_real = tensor.numel() == 0 or (held > 0 and tensor.untyped_storage().data_ptr() > 0)


@contextmanager
def mode(name: str) -> Iterator[None]:
    """ "plain", or "poisoned": uninitialised memory holds NaN."""
    with _memory.filled_with_nan() if name == "poisoned" else contextlib.nullcontext():
        yield


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
