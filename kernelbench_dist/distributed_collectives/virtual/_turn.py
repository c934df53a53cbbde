"""Whose turn it is to run. The extension has a faster Turn: csrc/bindings/turn.cpp says why."""

from __future__ import annotations

import sys
import threading
from typing import Any

from kernelbench_dist import _build  # it loads the extension


class _LockTurn:
    """One thread waits for it, another gives it, once for each wait."""

    def __init__(self) -> None:
        self._given = threading.Lock()
        self._given.acquire()

    def give(self) -> None:
        self._given.release()

    def wait(self) -> None:
        self._given.acquire()

    def swap(self, following: _LockTurn) -> None:
        following.give()
        self.wait()


_C: Any = sys.modules.get("kernelbench_dist._C") if _build.EXTENSION else None
Turn: Any = getattr(_C, "Turn", _LockTurn)
