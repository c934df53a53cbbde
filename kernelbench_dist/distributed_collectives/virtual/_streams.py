"""Order between the CUDA streams of ranks, without the host.

Where all ranks use one stream, as they do unless a program makes its own, there is nothing to do,
and to find that out must cost little: a stream is named by its device and its address.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

Name = tuple[int, int]


class Meeting:
    """What must come after a computation that ran on the current stream."""

    __slots__ = ("done", "stream")

    def __init__(self, device: int) -> None:
        self.stream = _current(device)
        self.done = torch.cuda.Event()
        self.done.record(_stream(self.stream))


def of(tensors: Iterable[Any]) -> Name | None:
    """The current stream, where the tensors are on a GPU."""
    for tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.is_cuda:
            return _current(tensor.get_device())
    return None


def before(streams: Sequence[Name]) -> bool:
    """Have the current stream wait for all others. False: there are no others."""
    own = _current(streams[0][0])
    others = set(streams) - {own}
    for name in others:
        _stream(own).wait_stream(_stream(name))
    return bool(others)


def after(meeting: Meeting) -> None:
    """Have this rank's current stream wait for the computation."""
    own = _current(meeting.stream[0])
    if own != meeting.stream:
        _stream(own).wait_event(meeting.done)


def _current(device: int) -> Name:
    return device, torch._C._cuda_getCurrentRawStream(device)


def _stream(name: Name) -> torch.cuda.Stream:
    device, address = name
    if not address:  # which ExternalStream would take for no address, and give a stream of its own
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(address, device=device)
