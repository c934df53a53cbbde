"""Messages between the judge and a worker: JSON and the bytes of tensors, over a socket.

The judge reads what an untrusted process wrote, so nothing here can run code (no pickle), every
length is checked before memory is taken for it, and every wait has a deadline. The bytes are
copied into the reader's own memory: a writer cannot change them later.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch

_MOST_JSON_BYTES = 32 << 20
_LENGTH = struct.Struct("<Q")
_AT_ONCE = 1 << 24


def dtype_name(dtype: torch.dtype) -> str:
    """
    >>> dtype_name(torch.float32)
    'float32'
    """
    return str(dtype).removeprefix("torch.")


DTYPES = {
    dtype_name(dtype): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint16, torch.uint32, torch.uint64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128),
    )
}


class ChannelError(Exception):
    """What came is no message, or is larger than it may be."""


class ClosedError(ChannelError):
    """The other side has closed the channel, as the end of its process does."""


class LateError(ChannelError):
    """The deadline has passed."""


class Channel:
    """One end of a socket pair."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(
        self,
        message: dict[str, Any],
        tensors: Iterable[torch.Tensor] = (),
        *,
        deadline: float | None = None,
    ) -> None:
        """Send a message; `deadline` is on the clock of time.monotonic."""
        flat = [_flat(t) for t in tensors]
        specs = [{"dtype": dtype_name(t.dtype), "shape": list(t.shape)} for t, _ in flat]
        head = json.dumps({**message, "tensors": specs}, allow_nan=True).encode()
        if len(head) > _MOST_JSON_BYTES:
            raise ChannelError(f"a message of {len(head)} bytes; {_MOST_JSON_BYTES} are accepted")
        self._write(_LENGTH.pack(len(head)) + head, deadline)
        for _, data in flat:
            self._write(_view(data), deadline)

    def receive(
        self, *, deadline: float | None = None, most_bytes: int = 1 << 62
    ) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """The next message and its tensors, of `most_bytes` together at most.

        Raises ClosedError, LateError, or ChannelError where it is malformed or too large.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        if length > _MOST_JSON_BYTES:
            raise ChannelError(f"a message of {length} bytes; {_MOST_JSON_BYTES} are accepted")
        try:
            message = json.loads(bytes(self._read(length, deadline)))
            specs = [_spec(spec) for spec in message.pop("tensors")]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ChannelError(f"malformed message: {type(error).__name__}: {error}") from None
        total = sum(n for _, _, n in specs)
        if total > most_bytes:
            raise ChannelError(f"tensors of {total} bytes; {most_bytes} are accepted")
        tensors = []
        for dtype, shape, count in specs:
            data = torch.empty(count, dtype=torch.uint8)
            self._fill(_view(data), deadline)
            tensors.append(data.view(dtype).reshape(shape))
        return message, tensors

    def close(self) -> None:
        self.sock.close()

    def _write(self, data: bytes | memoryview, deadline: float | None) -> None:
        try:
            for start in range(0, len(data), _AT_ONCE):
                self._set_timeout(deadline)
                self.sock.sendall(data[start : start + _AT_ONCE])
        except (TimeoutError, BlockingIOError):
            raise LateError("the other side does not read") from None
        except OSError as error:
            raise ClosedError(str(error)) from None

    def _read(self, count: int, deadline: float | None) -> memoryview:
        data = memoryview(bytearray(count))
        self._fill(data, deadline)
        return data

    def _fill(self, data: memoryview, deadline: float | None) -> None:
        while len(data):
            self._set_timeout(deadline)
            try:
                count = self.sock.recv_into(data[:_AT_ONCE])
            except (TimeoutError, BlockingIOError):
                raise LateError("no answer in time") from None
            except OSError as error:
                raise ClosedError(str(error)) from None
            if count == 0:
                raise ClosedError("the other side has closed the channel")
            data = data[count:]

    def _set_timeout(self, deadline: float | None) -> None:
        # A timeout of 0 would mean "do not wait" rather than "too late".
        left = None if deadline is None else max(deadline - time.monotonic(), 1e-3)
        self.sock.settimeout(left)


def _view(data: torch.Tensor) -> memoryview:
    """The memory of a tensor of bytes."""
    array: Any = data.numpy()
    return memoryview(array)


def _flat(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensor, and its bytes in order of its indices."""
    plain = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
    return tensor, plain.reshape(-1).view(torch.uint8)


def _spec(spec: Any) -> tuple[torch.dtype, Sequence[int], int]:
    dtype, shape = DTYPES[spec["dtype"]], spec["shape"]
    if not all(type(n) is int and 0 <= n < 1 << 48 for n in shape) or len(shape) > 64:
        raise ValueError(f"shape {shape!r}")
    count = math.prod(shape) * dtype.itemsize
    if count >= 1 << 62:
        raise ValueError(f"shape {shape!r}")
    return dtype, shape, count
