"""The worker's side of the channel: it answers one request after the other.

A worker is either the reference's, which runs the problem and draws the inputs, or a submission's,
which runs untrusted code. The second may rewrite all of this in its own memory: the judge believes
nothing that comes from it but the bytes of its outputs, which it compares.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import tempfile
import traceback
from typing import Any

import torch

from kernelbench_dist.distributed_collectives._errors import RankError
from kernelbench_dist.harness import _candidate, _reference, _sandbox, _virtual
from kernelbench_dist.harness._channel import Channel, ChannelError
from kernelbench_dist.harness._ranks import OwnProcess
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
    tempfile.tempdir = folder  # which may have been asked for before, and is then kept
    landlock = _sandbox.restrict([folder]) if request["sandbox"] else 0
    channel = Channel(sock)
    first, _ = channel.receive()
    if first["side"] == "reference":
        _sandbox.forbid_inspection()
    if first["ranks"] == "virtual" and first["world_size"] > 1:
        _serve_virtual_ranks(first, channel, landlock, folder)
    else:
        _serve(first, channel, landlock)
    return 0


def _made(first: dict[str, Any], ranks: OwnProcess, channel: Channel) -> Served:
    if first["side"] == "reference":
        return _reference.Reference(first, ranks)
    return _candidate.Candidate(first, ranks, channel)


def _serve(first: dict[str, Any], channel: Channel, landlock: int) -> None:
    """As the only rank of this process. What a request raises is answered, and the next comes."""
    ranks = OwnProcess(first["rank"], first["world_size"])
    requests = _made(first, ranks, channel).requests()
    channel.send({"ok": True, "landlock": landlock})
    while True:
        try:
            message, tensors = channel.receive()
        except ChannelError:
            return
        try:
            reply, result = requests[message["do"]](message, tensors)
            channel.send({"ok": True, **reply}, result)
        # Not Exception alone: sys.exit() and KeyboardInterrupt are a submission's failures too.
        except BaseException as error:
            channel.send({"error": {**describe(error), "rank": ranks.rank}})
        del tensors


def _serve_virtual_ranks(
    first: dict[str, Any], channel: Channel, landlock: int, folder: str
) -> None:
    """As all ranks. What a rank raises ends them, since the others may wait for it for ever."""
    world = _virtual.World(channel, first["world_size"], torch.device(first["device"]))
    served = [_made(first, ranks, channel) for ranks in world.ranks]
    channel.send({"ok": True, "landlock": landlock})
    try:
        world.serve(served)
    except RankError as error:
        said = describe(error.__cause__ or error)
        # The ranks' lines by the file's name alone: its folder is gone when this is read.
        said["message"] = said["message"].replace(os.path.realpath(folder) + os.sep, "")
        with contextlib.suppress(ChannelError):
            channel.send({"error": {**said, "rank": error.rank}})


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
