"""The devices that are judged on: a lock for each."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from filelock import FileLock


@contextlib.contextmanager
def exclusive(device: str) -> Iterator[float]:
    """Hold the device for a measurement, across all processes; gives the seconds waited for it.

    The kernel drops the lock of a process that dies, so that nothing is left behind.
    """
    started = time.monotonic()
    folder = Path(tempfile.gettempdir()) / "kernelbench_dist-locks"
    folder.mkdir(mode=0o1777, exist_ok=True)
    with contextlib.suppress(PermissionError):
        folder.chmod(0o1777)  # mkdir's mode is cut by the umask, and other users measure too
    with FileLock(folder / f"{_identity(device)}.lock", mode=0o666):
        yield time.monotonic() - started


def _identity(device: str) -> str:
    """The same for every process that means the same device."""
    if not device.startswith("cuda"):
        return "cpu"
    index = torch.device(device).index
    properties = torch.cuda.get_device_properties(
        torch.cuda.current_device() if index is None else index
    )
    return f"gpu-{properties.uuid}".replace(os.sep, "-")
