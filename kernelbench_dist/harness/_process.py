"""Workers, as the judge sees them: processes that it talks to, and that always end."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

import psutil
import torch

from kernelbench_dist.harness import _server
from kernelbench_dist.harness._channel import Channel, ClosedError, LateError

_MOST_OUTPUT_BYTES = 64 << 20
_KEPT_OUTPUT_BYTES = 1 << 20
_START_S = 300.0  # importing torch from a cold disk
_END_S = 30.0


class MachineError(Exception):
    """This machine cannot run workers, or cannot do what is asked of them."""


class WorkerEndedError(Exception):
    """The worker's process is gone. `why` is "exit", "signal", "memory", "time" or "output"."""

    def __init__(self, why: str, code: int | None, sentence: str, output: str) -> None:
        super().__init__(sentence)
        self.why, self.code, self.output = why, code, output


class Worker:
    """A process forked by the supervisor, with its channel; `with` makes sure that it ends.

    argv: a program to run instead of the judge's worker; its output is in `output()`.
    environment: all variables of that program; by default those that the supervisor started with.
    on_output: called with each piece of output as it comes, in another thread.
    """

    def __init__(
        self,
        *,
        memory_limit_bytes: int | None = None,
        time_limit_s: float | None = None,
        environment: Mapping[str, str] | None = None,
        argv: Sequence[str] = (),
        cwd: str | None = None,
        sandbox: bool = True,
        on_output: Callable[[str], None] | None = None,
    ) -> None:
        here, there = socket.socketpair()
        status, its_status = socket.socketpair()
        read_end, write_end = os.pipe()
        request = {
            "argv": list(argv),
            "cwd": cwd,
            "environment": None if environment is None else dict(environment),
            "memory_limit_bytes": memory_limit_bytes or default_memory_limit_bytes(),
            "time_limit_s": time_limit_s,
            "sandbox": sandbox,
        }
        try:
            _supervisor().start(request, [there.fileno(), write_end, its_status.fileno()])
        except BaseException:
            for end in (here, status):
                end.close()
            os.close(read_end)
            raise
        finally:
            there.close()
            its_status.close()
            os.close(write_end)
        self.channel = Channel(here)
        self._status = status
        self._ended: dict[str, Any] | None = None
        self._kept = bytearray()
        self._on_output = on_output
        self._flooded = False
        self._drain = threading.Thread(target=self._read_output, args=(read_end,), daemon=True)
        self._drain.start()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(
        self,
        message: dict[str, Any],
        tensors: Sequence[torch.Tensor] = (),
        *,
        deadline: float | None = None,
    ) -> None:
        try:
            self.channel.send(message, tensors, deadline=deadline)
        except LateError:
            raise self._too_late() from None
        except ClosedError:
            raise self._gone() from None

    def receive(
        self, *, deadline: float | None = None, most_bytes: int = 1 << 62
    ) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """The next message.

        Raises WorkerEndedError, also where the deadline passes, and ChannelError.
        """
        try:
            return self.channel.receive(deadline=deadline, most_bytes=most_bytes)
        except LateError:
            raise self._too_late() from None
        except ClosedError:
            raise self._gone() from None

    def output(self) -> str:
        """The end of what it wrote to stdout and stderr so far."""
        return bytes(self._kept).decode(errors="replace")

    def wait(self) -> tuple[int | None, str]:
        """Wait until it ends, by itself or by its limits: (exit code, why)."""
        ended = self._read_status(None)
        self._drain.join(_END_S)
        return ended.get("exit"), self._why(ended)

    def close(self) -> None:
        """Kill it if it still runs, and wait until it and all its children are gone."""
        self.channel.close()
        with contextlib.suppress(OSError):
            self._status.shutdown(socket.SHUT_WR)
        self._read_status(_END_S)
        self._status.close()
        self._drain.join(_END_S)

    def _read_output(self, fd: int) -> None:
        total = 0
        with open(fd, "rb", buffering=0) as pipe:
            while data := pipe.read(1 << 20):
                total += len(data)
                self._kept += data
                del self._kept[:-_KEPT_OUTPUT_BYTES]
                if self._on_output is not None:
                    with contextlib.suppress(Exception):  # reading must go on, or it stands still
                        self._on_output(data.decode(errors="replace"))
                if total > _MOST_OUTPUT_BYTES and not self._flooded:
                    self._flooded = True
                    with contextlib.suppress(OSError):
                        self._status.shutdown(socket.SHUT_WR)

    def _read_status(self, timeout_s: float | None) -> dict[str, Any]:
        if self._ended is None:
            data = b""
            try:
                self._status.settimeout(timeout_s)
                while part := self._status.recv(4096):
                    data += part
            except OSError:
                pass
            self._ended = json.loads(data) if data else {}
        return self._ended

    def _too_late(self) -> WorkerEndedError:
        self.close()
        return WorkerEndedError("time", None, "it was killed at its time limit", self.output())

    def _gone(self) -> WorkerEndedError:
        # It may have closed the channel and live on; then it is killed now.
        ended = self._read_status(1.0)
        if not ended:
            self._ended = None
        self.close()
        ended = self._ended or {}
        why, code = self._why(ended), ended.get("exit")
        sentence = {
            "memory": "it was killed at its memory limit",
            "time": "it was killed at its time limit",
            "output": f"it was killed after {_MOST_OUTPUT_BYTES >> 20} MiB of output",
            "exit": f"its process ended with exit code {code}",
            "signal": f"its process was killed by {_signal_name(code)}",
            "closed": "it closed the judge's channel",
        }[why]
        return WorkerEndedError(why, code, sentence, self.output())

    def _why(self, ended: Mapping[str, Any]) -> str:
        if self._flooded:
            return "output"
        if ended.get("killed_for") in ("memory", "time"):
            return str(ended["killed_for"])
        if ended.get("killed_for") or ended.get("exit") is None:
            return "closed"
        return "exit" if ended["exit"] >= 0 else "signal"


def default_memory_limit_bytes() -> int:
    """Three quarters of what this machine has free."""
    return int(0.75 * psutil.virtual_memory().available)


def _signal_name(code: int | None) -> str:
    try:
        return signal.Signals(-(code or 0)).name
    except ValueError:
        return f"signal {-(code or 0)}"


class _Supervisor:
    """The supervisor's process, started when the first worker is wanted."""

    def __init__(self) -> None:
        # A message is a request: none is ever cut or joined with the next.
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        paths = [os.path.abspath(path) for path in sys.path]
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (close() closes it)
        self.process = subprocess.Popen(
            [sys.executable, "-m", _server.__name__, str(there.fileno())],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self.errors,
            stderr=self.errors,
            cwd="/",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )
        there.close()
        self.control = here
        self.control.settimeout(_START_S)

    def start(self, request: dict[str, Any], fds: list[int]) -> None:
        data = json.dumps(request).encode()
        if len(data) > _server.MOST_REQUEST_BYTES:
            raise MachineError(f"a worker's environment of {len(data)} bytes is too large")
        socket.send_fds(self.control, [data], fds)

    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        self.control.close()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()

    def said(self) -> str:
        self.errors.seek(0)
        return self.errors.read()[-2000:].decode(errors="replace")


class _Starter:
    """One supervisor a process; a fork of this process gets its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.supervisor: _Supervisor | None = None
        self.pid = os.getpid()

    def start(self, request: dict[str, Any], fds: list[int]) -> None:
        with self.lock:
            for attempt in (1, 2):
                if self.supervisor is None or self.pid != os.getpid():
                    self.supervisor, self.pid = _Supervisor(), os.getpid()
                try:
                    if not self.supervisor.alive():
                        raise BrokenPipeError
                    self.supervisor.start(request, fds)
                    return
                except OSError as error:
                    said = self.supervisor.said()
                    self.supervisor.close()
                    self.supervisor = None
                    if attempt == 2:
                        raise MachineError(
                            f"the supervisor of workers does not start: {error}\n{said}"
                        ) from error

    def close(self) -> None:
        with self.lock:
            if self.supervisor is not None and self.pid == os.getpid():
                self.supervisor.close()
            self.supervisor = None


_starter = _Starter()
atexit.register(_starter.close)


def _supervisor() -> _Starter:
    return _starter


def end_workers() -> None:
    """Kill all workers of this process; whoever waits for one gets WorkerEndedError."""
    _starter.close()


def soon(seconds: float) -> float:
    """A deadline for `send` and `receive`."""
    return time.monotonic() + seconds
