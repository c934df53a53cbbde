"""Order between the CUDA streams of ranks, without the host.

Where all ranks use one stream, as they do unless a program makes its own, there is nothing to do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Meeting:
    """What must come after a computation that ran on `stream`."""

    __slots__ = ("done", "stream")

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.done = torch.cuda.Event()
        self.done.record(stream)


def of(tensors: Any) -> Any:
    """The current stream, where the tensors are on a GPU."""
    for tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.is_cuda:
            return torch.cuda.current_stream(tensor.device)
    return None


def before(streams: list[Any]) -> bool:
    """Have the current stream wait for all others. False: there are no others."""
    own = torch.cuda.current_stream(streams[0].device)
    others = {stream.cuda_stream: stream for stream in streams}
    others.pop(own.cuda_stream, None)
    for stream in others.values():
        own.wait_stream(stream)
    return bool(others)


def after(meeting: Meeting) -> None:
    """Have this rank's current stream wait for the computation."""
    own = torch.cuda.current_stream(meeting.stream.device)
    if own.cuda_stream != meeting.stream.cuda_stream:
        own.wait_event(meeting.done)
