"""The program of a process that judges one job after the other.

Its argument is the descriptor of a socket. Jobs come over it, and results go back as JSON. When the
other side closes it, or dies, this process ends, and its workers with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from kernelbench_dist.harness.sweep._judge import judge
from kernelbench_dist.harness.sweep._plan import Job

_SET_PDEATHSIG = 1


class _Jobs:
    """Jobs as they come, read by a thread of its own, so that the other side's end is noticed."""

    def __init__(self, connection: Connection, on_end: Callable[[], None]) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.busy = False
        threading.Thread(target=self._read, args=(connection, on_end), daemon=True).start()

    def __iter__(self) -> Iterator[Job]:
        while (job := self._jobs.get()) is not None:
            self.busy = True
            yield job
            self.busy = False

    def _read(self, connection: Connection, on_end: Callable[[], None]) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._jobs.put(connection.recv())
        if self.busy:
            on_end()
        self._jobs.put(None)


def main() -> None:
    # The socket's end may come unnoticed where a library holds the interpreter; the kernel's signal
    # does not.
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    connection = Connection(int(sys.argv[1]))
    # The supervisor of the workers sees this process's end, kills them, and ends.
    for job in _Jobs(connection, on_end=lambda: os._exit(1)):
        connection.send_bytes(json.dumps(judge(job)).encode())


if __name__ == "__main__":
    main()
