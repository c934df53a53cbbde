"""The exception that ends a rank, and how one thread raises it in another.

It arrives between two steps of the other's Python code, whatever these are: who sends it sees to it
(`Rank.gate`) that these are steps of the program, not of handing the baton on.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading


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
