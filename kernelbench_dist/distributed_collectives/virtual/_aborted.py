"""The exception that ends a rank, how one thread raises it in another, and a signal that bears it.

It arrives between two steps of the other's Python code, whatever these are: who sends it sees to it
(`Rank.gate`) that these are steps of the program, not of handing the baton on.
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading


class Signal:
    """Set once, and waited for by a thread in which exceptions may arrive at any time.

    threading.Event keeps its lock for ever where one arrives between its steps.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._wake_up: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        self._is_set = True
        self._wake_up.put(None)

    def wait(self, seconds: float) -> bool:
        if not self._is_set:
            with contextlib.suppress(queue.Empty):
                self._wake_up.get(timeout=seconds)
        return self._is_set


class Aborted(BaseException):
    """Unwinds a rank after the run has failed elsewhere."""


def send(thread: threading.Thread) -> None:
    """Not to be taken back: of that Python leaves a trace behind, see `forget`."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Aborted)
    )


def receive() -> None:
    """What has been sent to this thread arrives at the end of a round, if not before."""
    for _ in range(2):
        pass


def forget() -> None:
    """While anything is on its way, Python 3.11 hangs in functions that are traced, in any thread.

    Its one flag is taken down where anything arrives; a thread that wakes up puts it up again.
    """
    with contextlib.suppress(Aborted):
        send(threading.current_thread())
        receive()
