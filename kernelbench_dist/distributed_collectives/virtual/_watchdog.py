"""What watches over a run from the caller's thread: whether anything is being done."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
import threading
import time
import traceback
from types import FrameType
from typing import TYPE_CHECKING

import psutil

from kernelbench_dist.distributed_collectives.virtual._calls import _hidden

if TYPE_CHECKING:
    from kernelbench_dist.distributed_collectives.virtual._baton import Rank, Run

_IDLE_SHARE = 0.1  # of a core; who sleeps in a loop uses less
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_PACKAGES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)  # within it

_Work = dict[tuple[int, int], float]  # seconds, by process and thread


class Watchdog:
    """Tells for how long nothing has been done for the ranks.

    Only one rank runs, so that what any thread of the process does is done for it: threads that
    compute for an operation, autograd's, a data loader's; and its child processes: compilers, a
    pool of workers. Not counted are the Python threads that ran before the ranks: they are the
    caller's, a progress bar or a server, and would hide that the ranks stand still. A child process
    that was there before may be a compiler's pool, and counts: where one is busy with something
    else, ranks that stand still are found when it is done.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.others = {thread.native_id for thread in threading.enumerate()}
        self.progress = -1
        self.used: _Work = {}
        self.slept = 0.0
        self.used_by_children: _Work = {}
        self.since = self.last = time.monotonic()

    def idle_s(self) -> float:
        now = time.monotonic()
        enough = _IDLE_SHARE * (now - self.last)
        if (
            self.run.progress != self.progress
            or self._own_work() > enough
            or self._work_of_children() > enough
            or (self.run.holder is not None and _in_a_debugger(self.run.holder))
        ):
            self.since = now
        self.progress, self.last = self.run.progress, now
        return now - self.since

    def _own_work(self) -> float:
        before, slept, pid = self.used, self.slept, os.getpid()
        self.used = {(p, t): s for (p, t), s in _work(pid).items() if t not in self.others}
        self.slept = self.run.sleeping_s  # a loop of short sleeps does nothing, often
        return _most(before, self.used) - (self.slept - slept)

    def _work_of_children(self) -> float:
        before = self.used_by_children
        self.used_by_children = {}
        for child in psutil.Process().children(recursive=True):
            self.used_by_children.update(_work(child.pid))
        return _most(before, self.used_by_children)


def _most(before: _Work, now: _Work) -> float:
    """What one thread has used. In sum, many that look around now and then seem to work."""
    used = (seconds - before.get(thread, 0.0) for thread, seconds in now.items())
    return max(used, default=0.0)


def _work(pid: int) -> _Work:
    """For how long each thread of a process has run, or waited for a core: then it is not idle."""
    found = {}
    with contextlib.suppress(OSError):  # it has ended, or this is no Linux
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                    ran, waited, _ = file.read().split()
                found[pid, int(thread)] = (int(ran) + int(waited)) / 1e9
    if not found:
        with contextlib.suppress(psutil.Error):
            for t in psutil.Process(pid).threads():
                found[pid, t.id] = t.user_time + t.system_time
    return found


def stack(rank: Rank) -> str:
    """Where a rank stands in the user's program; in all that it runs, where none of it is his."""
    frames = _frames(rank)
    own = [
        (frame, line)
        for frame, line in frames
        if not _hidden(frame) and not _of_the_standard_library(frame.f_code.co_filename)
    ]
    innermost = (own or frames)[:4]
    return "".join(traceback.StackSummary.extract(reversed(innermost)).format())


def _frames(rank: Rank) -> list[tuple[FrameType, int]]:
    """From the innermost outwards."""
    ident = rank.thread.ident if rank.thread is not None else None
    frame = sys._current_frames().get(ident or 0)
    return [] if frame is None else list(traceback.walk_stack(frame))


def _of_the_standard_library(file: str) -> bool:
    return file.startswith(_STANDARD_LIBRARY) and not any(part in file for part in _PACKAGES)


def _in_a_debugger(rank: Rank) -> bool:
    return any(f.f_code.co_filename.endswith(("/bdb.py", "/pdb.py")) for f, _ in _frames(rank))
