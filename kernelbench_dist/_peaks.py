"""What a GPU cannot exceed, by its datasheet."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Peaks:
    """Rates that no kernel can exceed, by datasheet (dense, at boost clocks)."""

    bytes_per_s: float
    flops_per_s: float | None
    """of the fastest unit that the dtype's precision rules allow; None where it is not known"""
    source: str

    def least_us(self, nbytes: float, flops: float) -> tuple[float, float]:
        """To move so many bytes, and for so many operations; 0 where their rate is not known."""
        compute_us = 1e6 * flops / self.flops_per_s if self.flops_per_s else 0.0
        return 1e6 * nbytes / self.bytes_per_s, compute_us


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
