"""The devices that are judged on: a lock for each, and the datasheet's peaks."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock


@dataclass(frozen=True)
class Peaks:
    """Rates that no kernel can exceed, by datasheet (dense, at boost clocks)."""

    bytes_per_s: float
    flops_per_s: float | None
    """of the fastest unit that the dtype's precision rules allow; None where it is not known"""
    source: str


# name: (bytes/s, FLOP/s of the fastest unit for each dtype). float32 without TF32 runs on the
# ordinary units; with it, on the tensor cores.
_DATASHEETS = {
    "H200": (4.8e12, {"float16": 989e12, "bfloat16": 989e12, "tf32": 495e12, "float32": 67e12,
                      "float64": 67e12}),
    "H100": (3.35e12, {"float16": 989e12, "bfloat16": 989e12, "tf32": 495e12, "float32": 67e12,
                       "float64": 67e12}),
    "A100": (2.04e12, {"float16": 312e12, "bfloat16": 312e12, "tf32": 156e12, "float32": 19.5e12,
                       "float64": 19.5e12}),
}  # fmt: skip


GPUS = tuple(_DATASHEETS)


def peaks(device: str, dtype: str) -> Peaks | None:
    """The peaks of a GPU; None on a CPU. An unknown GPU's bandwidth comes from its clocks."""
    if not device.startswith("cuda"):
        return None
    properties = torch.cuda.get_device_properties(torch.device(device))
    found = peaks_of(properties.name, dtype)
    if found is not None:
        return found
    clock_khz = getattr(properties, "memory_clock_rate", 0)
    bits = getattr(properties, "memory_bus_width", 0)
    if not clock_khz or not bits:
        return None
    return Peaks(2 * clock_khz * 1e3 * bits / 8, None, "memory clock and bus width")


def peaks_of(gpu: str, dtype: str) -> Peaks | None:
    """By the datasheet of the GPU that is named in the text; None for one that is not in GPUS."""
    for name, (bandwidth, rates) in _DATASHEETS.items():
        if name in gpu:
            return Peaks(bandwidth, rates.get(dtype), f"datasheet of the {name}")
    return None


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
