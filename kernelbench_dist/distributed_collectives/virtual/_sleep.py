"""While ranks run, time.sleep in a rank lets the others run, as it does in a process of its own.

So a rank may poll for what another sets. It sleeps for what is left of its time when it has the
baton again, as a process would that others do not hinder. `from time import sleep` before the run
is out of reach: such a rank sleeps with the baton. So does one in an installed package, which may
hold a lock that the next rank wants: torch's compiler does, while it waits for a file.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from kernelbench_dist.distributed_collectives._current import current_rank
from kernelbench_dist.distributed_collectives.virtual._calls import users_line

_INSTALLED = tuple(sysconfig.get_path(kind) + os.sep for kind in ("stdlib", "purelib", "platlib"))


def _of_the_program(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith(_INSTALLED)


class SleepsHandOn:
    """Replaces time.sleep while ranks run, for their threads alone."""

    def __enter__(self) -> None:
        self.found: Callable[[Any], None] = time.sleep

        @functools.wraps(self.found)
        def sleep(seconds: Any, /) -> None:
            rank, began = current_rank(), time.monotonic()
            # A negative time raises.
            if rank is None or not seconds >= 0 or not _of_the_program(sys._getframe(1)):
                self.found(seconds)
                return
            used = time.thread_time()
            rank.sleeps_at = users_line()
            try:
                rank.run.sleeps(rank)
                self.found(max(0.0, seconds - (time.monotonic() - began)))
            finally:
                rank.sleeps_at = ""
                rank.run.sleeping_s += time.thread_time() - used

        self.own = sleep
        time.sleep = sleep

    def __exit__(self, *_: object) -> None:
        if time.sleep is self.own:  # and not the program's own, that it has left there
            time.sleep = self.found
