"""The worker's side of the channel: it answers one request after the other.

A worker is either the reference's, which runs the problem and draws the inputs, or a submission's,
which runs untrusted code. The second may rewrite all of this in its own memory: the judge believes
nothing that comes from it but the bytes of its outputs, which it compares.
"""

from __future__ import annotations

import os
import re
import socket
import traceback
from typing import Any

import torch

from kernelbench_dist.harness import _candidate, _reference, _sandbox
from kernelbench_dist.harness._channel import Channel, ChannelError
from kernelbench_dist.harness._served import Served

_MOST_TRACEBACK = 8000
_NO_MEMORY = re.compile("not enough memory|can't allocate memory|CUDA out of memory", re.IGNORECASE)


def main(request: dict[str, Any], sock: socket.socket) -> int:
    """Serve one judge over the socket until it closes it; returns the exit code."""
    folder = request["folder"]
    # Whatever a library caches goes to the worker's own folder, which goes with it.
    os.environ.update(
        HOME=folder,
        TMPDIR=folder,
        XDG_CACHE_HOME=folder,
        TORCH_EXTENSIONS_DIR=os.path.join(folder, "torch_extensions"),
        TORCHINDUCTOR_CACHE_DIR=os.path.join(folder, "inductor"),
        TRITON_CACHE_DIR=os.path.join(folder, "triton"),
        CUDA_CACHE_PATH=os.path.join(folder, "cuda"),
    )
    landlock = _sandbox.restrict([folder]) if request["sandbox"] else 0
    channel = Channel(sock)
    side: Served
    first, _ = channel.receive()
    if first["side"] == "reference":
        _sandbox.forbid_inspection()
        side = _reference.Reference(first)
    else:
        side = _candidate.Candidate(first, channel)
    requests = side.requests()
    channel.send({"ok": True, "landlock": landlock})
    while True:
        try:
            message, tensors = channel.receive()
        except ChannelError:
            return 0
        try:
            reply, result = requests[message["do"]](message, tensors)
            channel.send({"ok": True, **reply}, result)
        # Not Exception alone: sys.exit() and KeyboardInterrupt are a submission's failures too.
        except BaseException as error:
            channel.send({"error": describe(error)})
        del tensors


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain values; `memory` says that it is about memory that ran out."""
    out_of_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None
    )
    lines = traceback.format_exception(error)
    return {
        "type": type(error).__name__,
        "message": str(error)[:_MOST_TRACEBACK],
        "traceback": "".join(lines)[-_MOST_TRACEBACK:],
        "at": _place(error),
        "memory": out_of_memory,
    }


def _place(error: BaseException) -> str | None:
    """Where in the problem's or the submission's file it was raised: "file.py:12, in forward"."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{os.path.basename(error.filename or '?')}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    ours = os.path.dirname(os.path.abspath(__file__))
    theirs = [
        frame
        for frame in frames
        if not frame.filename.startswith(ours) and "site-packages" not in frame.filename
    ]
    for frame in reversed(theirs):
        if os.path.isfile(frame.filename) and "/torch/" not in frame.filename:
            return f"{os.path.basename(frame.filename)}:{frame.lineno}, in {frame.name}"
    return None
