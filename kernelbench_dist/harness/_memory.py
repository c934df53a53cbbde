"""Inputs in guarded memory, and memory that shows when it is read before it is written.

For use in a worker. The byte 255 is the poison: NaN in every float type, -1 in the integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kernelbench_dist._compare import digest

POISON = 255
LEAST_GUARD_BYTES, MOST_GUARD_BYTES = 4096, 4 << 20
LAYOUTS = ("contiguous", "transposed", "strided", "offset")
_modes_found: list[int] = []
_copy = torch.Tensor.copy_  # torch's own, whatever a submission makes of the name later


def lay_out(
    values: torch.Tensor, device: torch.device, layout: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes of a piece of memory, and the tensor in it that holds the values.

    Before and after the tensor, and between its elements, is poison: reads past the ends give NaN.

    layout: "contiguous"; "transposed", the last two dims swapped in memory; "strided", every second
    element; "offset", one element past an aligned address.
    """
    size = values.element_size()
    guard = min(max(values.numel() * size, LEAST_GUARD_BYTES), MOST_GUARD_BYTES)
    guard = -(-guard // 4096) * 4096
    shape = list(values.shape)
    swap = layout == "transposed" and values.dim() >= 2
    step = 2 if layout == "strided" else 1
    if swap:
        shape[-1], shape[-2] = shape[-2], shape[-1]
    shift = size if layout == "offset" else 0
    span = values.numel() * size * step
    memory = torch.full((guard + shift + span + guard,), POISON, dtype=torch.uint8, device=device)
    inner = memory[guard + shift : guard + shift + span].view(values.dtype)
    tensor = inner[::step].view(shape)
    tensor = tensor.transpose(-1, -2) if swap else tensor
    tensor.copy_(values)
    return memory, tensor


def overwrite(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Put other values at the same place."""
    with torch.no_grad():
        _copy(tensor, values)


class Guarded:
    """A tensor's values in memory laid out by `lay_out`."""

    def __init__(self, values: torch.Tensor, device: torch.device, layout: str) -> None:
        self.memory, self.tensor = lay_out(values, device, layout)
        self._before = self._digest()

    def unchanged(self) -> bool:
        """Whether all bytes, of the tensor and beside it, are as they were at first."""
        return self._digest() == self._before

    def refill(self, values: torch.Tensor) -> None:
        """Put other values at the same place."""
        overwrite(self.tensor, values)

    def _digest(self) -> bytes:
        return digest(self.memory)


def poison_free_memory(nbytes: int, device: torch.device) -> None:
    """Fill memory that the next allocations of up to `nbytes` will likely get, and free it."""
    sizes = {nbytes, nbytes // 2, nbytes // 4, 1 << 20, 1 << 16, 1 << 12, 1 << 9}
    blocks = [
        _poisoned(size, device)
        for size in sizes
        if size > 0
        for _ in range(4 if size <= 1 << 20 else 1)
    ]
    del blocks


def _poisoned(nbytes: int, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.full((nbytes,), POISON, dtype=torch.uint8, device=device)
    # On a busy machine, torch's threads would wait for each other longer than the filling takes.
    block = torch.empty(nbytes, dtype=torch.uint8)
    block.numpy().fill(POISON)
    return block


@contextmanager
def filled_with_nan() -> Iterator[None]:
    """Every new uninitialised tensor is filled with NaN (or the largest integer) meanwhile.

    This is torch's deterministic mode, whose fill reaches at::empty in compiled code too. It is the
    process's: the last virtual rank to leave puts back what the first has found.
    """
    _modes_found.append(torch.get_deterministic_debug_mode())
    # use_deterministic_algorithms would import inductor, which takes every worker two seconds.
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(_modes_found.pop())
