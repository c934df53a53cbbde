"""What one rank can find wrong in its own call, before it communicates.

Real process groups take several of these silently and give wrong values, or stop the process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kernelbench_dist.distributed_collectives.virtual._group import VirtualGroup


def contiguous(group: VirtualGroup, fn: str, tensors: Sequence[Tensor]) -> None:
    kind = None
    for tensor in tensors:
        _strided(fn, tensor)
        if group.meetings.strict and not tensor.is_contiguous():
            raise ValueError(
                f"{fn}: a tensor of shape {tuple(tensor.shape)} has strides {tensor.stride()}; "
                "contiguous ones are accepted: real process groups move the memory as it lies"
            )
        if kind is None:
            kind = tensor.device.type
        elif tensor.device.type != kind:
            raise ValueError(
                f"{fn}: tensors on {kind} and on {tensor.device.type}; one kind is accepted"
            )


def dense(group: VirtualGroup, fn: str, tensors: Sequence[Tensor]) -> None:
    """Without gaps and overlaps, in any order of dimensions, as channels_last is."""
    for tensor in tensors:
        _strided(fn, tensor)
        if group.meetings.strict and not tensor.is_contiguous() and not _is_dense(tensor):
            raise ValueError(
                f"{fn}: a tensor of shape {tuple(tensor.shape)} has strides {tensor.stride()}, "
                "with gaps or overlaps; dense ones are accepted: real process groups move the "
                "memory as it lies"
            )


def _strided(fn: str, tensor: Tensor) -> None:
    if tensor.layout != torch.strided:
        raise ValueError(f"{fn}: a tensor has layout {tensor.layout}; strided ones are accepted")


def _is_dense(tensor: Tensor) -> bool:
    expected = 1
    for size, stride in sorted(
        zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: pair[1]
    ):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def count(group: VirtualGroup, fn: str, what: str, tensors: Sequence[Tensor]) -> None:
    if len(tensors) != group.size():
        raise ValueError(
            f"{fn}: {len(tensors)} {what} tensors; {group.size()}, one a rank, are accepted"
        )


def same_shape(group: VirtualGroup, fn: str, output: Tensor, own: Tensor) -> None:
    if output.shape != own.shape or output.dtype != own.dtype:
        raise ValueError(
            f"{fn}: the output is {output.dtype} {tuple(output.shape)}, and this rank's input "
            f"{own.dtype} {tuple(own.shape)}; they must be alike"
        )


def joined(
    group: VirtualGroup, fn: str, part: Tensor, whole: Tensor, name: str, whole_name: str
) -> None:
    """`whole` holds one `part` a rank: joined on dim 0, or stacked; dims of size 1 do not count."""
    size = group.size()
    rows = (size * part.shape[0], *part.shape[1:]) if part.dim() else (size,)
    stacked = (size, *part.shape)
    accepted = [rows, stacked]
    if _long(whole.shape) not in map(_long, accepted) and (
        group.meetings.strict or whole.numel() != size * part.numel()
    ):
        raise ValueError(
            f"{fn}: the {whole_name} has shape {tuple(whole.shape)}; with {size} ranks and "
            f"{name} {tuple(part.shape)}, {' or '.join(map(str, accepted))} is accepted"
        )
    if part.dtype != whole.dtype:
        raise ValueError(
            f"{fn}: the {name} is {part.dtype} and the {whole_name} {whole.dtype}; they must be "
            "alike"
        )


def _long(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


def splits(group: VirtualGroup, which: str, tensor: Tensor, given: Any) -> list[int]:
    size = group.size()
    if tensor.dim() == 0:
        raise ValueError(f"all_to_all_single: the {which} is a scalar; 1 or more dims are accepted")
    rows = tensor.shape[0]
    if not given:
        if rows % size:
            raise ValueError(
                f"all_to_all_single: the {which} has {rows} rows, which {size} ranks do not "
                "share evenly: give split sizes"
            )
        return [rows // size] * size
    given = list(given)
    if len(given) != size or sum(given) != rows or min(given) < 0:
        raise ValueError(
            f"all_to_all_single: {which} split sizes {given}; {size} numbers of 0 or more whose "
            f"sum is {rows} are accepted"
        )
    return given


def same_rows(group: VirtualGroup, output: Tensor, tensor: Tensor) -> None:
    if output.shape[1:] != tensor.shape[1:] or output.dtype != tensor.dtype:
        raise ValueError(
            f"all_to_all_single: rows of the output are {output.dtype} {tuple(output.shape[1:])} "
            f"and those of the input {tensor.dtype} {tuple(tensor.shape[1:])}; they must be alike"
        )


def no_modes() -> contextlib.AbstractContextManager[None]:
    """Keeps what counts or replaces torch's operations (a flop counter) out of the data's way."""
    if torch._C._len_torch_dispatch_stack() == 0:
        return contextlib.nullcontext()
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()
