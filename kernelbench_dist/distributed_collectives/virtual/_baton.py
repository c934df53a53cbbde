"""R ranks as threads of one process, of which one runs at a time: the one that has the baton.

A rank hands the baton on where it has to wait for others, to the next in rank order that can go on.
So every run takes the same course, and what a rank computes between two such points is as it would
be in a process of its own: at each hand-over the rank's own state (see `_state`) is put in place.
Where no rank can go on, that is a deadlock, and known at once.
"""

from __future__ import annotations

import contextvars
import ctypes
import itertools
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import torch

from kernelbench_dist.distributed_collectives._current import become_rank
from kernelbench_dist.distributed_collectives._errors import DeadlockError, RankError
from kernelbench_dist.distributed_collectives.virtual._calls import Meetings
from kernelbench_dist.distributed_collectives.virtual._schedule import InRankOrder, Schedule
from kernelbench_dist.distributed_collectives.virtual._state import RankState, Surroundings

_MANY_POLLS = 100  # fewer may lie between long computations
_IDLE_SHARE = 0.1  # of a core; who sleeps in a loop uses less
_UNWIND_S = 2.0  # how long a rank may take to end once it is told to


class Aborted(BaseException):
    """Unwinds a rank after the run has failed elsewhere."""


class Waiting(Protocol):
    """What a rank waits for."""

    def ready(self) -> bool: ...
    def describe(self) -> str: ...


_identities = itertools.count(1)  # no two ranks of the process have the same


class Rank:
    """One rank: its thread, and where it stands."""

    def __init__(self, run: Run, index: int, state: RankState) -> None:
        self.run = run
        self.index = index
        self.identity = next(_identities)
        self.state = state
        self.turn = threading.Lock()
        self.turn.acquire()
        self.thread: threading.Thread | None = None
        self.ended = False
        self.waiting: Waiting | None = None
        self.result: Any = None
        self.calls = 0  # of communication so far
        self.outside: list[tuple[int, ...]] = []  # groups that were made without it
        self.maker: Any = None  # a Member of the group in which groups are made
        self.polled: Waiting | None = None
        self.polls, self.polls_seen, self.polls_since = 0, -1, 0.0
        self.groups: dict[tuple[str, tuple[int, ...]], int] = {}  # how often it has made each

    def can_go_on(self) -> bool:
        return not self.ended and (self.waiting is None or self.waiting.ready())

    def describe(self) -> str:
        if self.ended:
            return "returned"
        if self.waiting is not None:
            return self.waiting.describe()
        if self.polled is not None:
            return f"polls: {self.polled.describe()}"
        return "runs" if self.run.holder is self else "can go on"


class Run:
    """`world_size` ranks, from their start to the end of the last."""

    def __init__(
        self,
        world_size: int,
        device: torch.device,
        *,
        order: str = "rank",
        mode: str = "strict",
        schedule: Schedule | None = None,
        watchdog_s: float = 60.0,
    ) -> None:
        from kernelbench_dist.distributed_collectives.virtual._store import RunStore

        self.size = world_size
        self.device = device
        self.order = order
        self.portable = mode == "portable"
        self.store = RunStore(self)
        self.making = Meetings("the making of groups", tuple(range(world_size)), strict=True)
        self.groups: dict[tuple[str, tuple[int, ...], int], Meetings] = {}
        self.schedule = schedule or InRankOrder()
        self.watchdog_s = watchdog_s
        self.surroundings = Surroundings(world_size, device)
        self.ranks = [Rank(self, r, self.surroundings.state(r)) for r in range(world_size)]
        self.failure: BaseException | None = None
        self.abandoned = False  # a rank that could not be ended may unwind after the run
        self.progress = 0  # counts what may let a rank go on
        self.holder: Rank | None = None
        self.held_since = 0.0
        self._over = threading.Lock()
        self._over.acquire()

    # In the caller's thread

    def start(self, programs: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run one program a rank, and return what they return."""
        with self.surroundings:
            context = contextvars.copy_context()
            for rank, program in zip(self.ranks, programs, strict=True):
                rank.thread = threading.Thread(
                    target=context.copy().run,
                    args=(self._thread, rank, program),
                    name=f"rank {rank.index}",
                    daemon=True,
                )
                rank.thread.start()
            try:
                first = self.schedule.choose(None, self.ranks)
                assert first is not None
                self._give(first)
                self._wait_for_the_end()
            except BaseException as error:  # Ctrl-C, or the watchdog
                self._stop(error)
                raise
        if self.failure is not None:
            raise self.failure
        return [rank.result for rank in self.ranks]

    def _wait_for_the_end(self) -> None:
        seen, used = -1, 0.0
        since = last = time.monotonic()
        while not self._over.acquire(timeout=min(1.0, self.watchdog_s / 4)):
            rank, now = self.holder, time.monotonic()
            busy = _cpu_seconds(rank)
            worked = not 0 <= busy - used < _IDLE_SHARE * (now - last)
            if self.progress != seen or worked or _in_a_debugger(rank):
                since = now
            seen, used, last = self.progress, busy, now
            if now - since > self.watchdog_s and rank is not None:
                raise DeadlockError(
                    rank.index,
                    f"rank {rank.index} has done nothing for {self.watchdog_s:g} s, and waits for "
                    "something that is no operation of its group (a lock, a queue, a sleep, a "
                    "file), while all others wait for it:\n"
                    f"{_stack(rank)}{self.table()}",
                )

    def _stop(self, error: BaseException) -> None:
        """End all ranks: each is unwound as soon as it runs Python code."""
        self.failure = self.failure or error
        deadline = time.monotonic() + _UNWIND_S
        while not self._over.acquire(timeout=0.1):
            if time.monotonic() > deadline:
                self.abandoned = True
                return
            holder = self.holder
            if holder is not None and holder.thread is not None and not holder.ended:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(holder.thread.ident or 0), ctypes.py_object(Aborted)
                )

    def table(self) -> str:
        """What each rank is doing, a line a rank."""
        return "\n".join(f"  rank {r.index}: {r.describe()}" for r in self.ranks)

    # In the ranks' threads

    def _thread(self, rank: Rank, program: Callable[[], Any]) -> None:
        become_rank(rank)
        rank.turn.acquire()
        try:
            if self.failure is None:
                self.surroundings.enter_thread()
                rank.state.put()
                rank.result = program()
        except Aborted:
            pass
        except SystemExit as error:
            if error.code not in (None, 0):
                self._fail(rank, error)
        except BaseException as error:
            self._fail(rank, error)
        finally:
            rank.ended, rank.waiting = True, None
            self.progress += 1
            self._pass_on_for_good(rank)

    def _fail(self, rank: Rank, error: BaseException) -> None:
        if self.failure is not None:
            return
        if isinstance(error, RankError | KeyboardInterrupt):
            self.failure = error
            return
        said = "".join(traceback.format_exception_only(type(error), error)).strip()
        self.failure = RankError(
            rank.index, f"rank {rank.index} of {len(self.ranks)} failed: {said}"
        )
        self.failure.__cause__ = error

    def end_with(self, rank: Rank, error: Exception) -> NoReturn:
        """End the run with this rank's failure, whatever its program would catch."""
        self._fail(rank, error)
        raise Aborted

    def _pass_on_for_good(self, rank: Rank) -> None:
        following = self._choose(rank)
        if following is None and not all(r.ended for r in self.ranks):
            self._found_deadlock()
            following = self._choose(rank)
        if following is None:
            self._look_for_what_is_left()
            self._over.release()
        else:
            self._give(following)

    def _look_for_what_is_left(self) -> None:
        left = [c for meetings in (*self.groups.values(), self.making) for c in meetings.left()]
        if left and self.failure is None:
            lines = "\n".join(f"  rank {call.rank.index}: {call.describe()}" for call in left)
            self.failure = DeadlockError(
                left[0].rank.index, f"all ranks have returned, and nobody met these calls:\n{lines}"
            )

    def check(self) -> None:
        if self.failure is not None:
            raise Aborted

    def meetings_of(self, rank: Rank, name: str, ranks: tuple[int, ...]) -> Meetings:
        """Where the ranks of a group meet: each gets there by making the group."""
        turn = rank.groups[name, ranks] = rank.groups.get((name, ranks), 0) + 1
        return self.groups.setdefault((name, ranks, turn), Meetings(name, ranks, strict=True))

    def makes_group(self, rank: Rank, ranks: Sequence[int]) -> None:
        """All ranks make the same groups in the same order; none waits for that."""
        from kernelbench_dist.distributed_collectives.virtual._calls import Call
        from kernelbench_dist.distributed_collectives.virtual._member import Member

        if rank.maker is None:
            rank.maker = Member(rank, rank.index, self.making)
        rank.maker.collective(Call("new_group", agree=(("ranks", ", ".join(map(str, ranks))),)))

    def wait(self, rank: Rank, waiting: Waiting) -> None:
        """Come back when `waiting` is ready; others run meanwhile."""
        if self.failure is not None:
            raise Aborted
        rank.waiting = waiting
        try:
            while not waiting.ready():
                following = self._choose(rank)
                if following is None:
                    self._found_deadlock()
                    raise Aborted
                if following is not rank:
                    self._hand_over(rank, following)
                if self.failure is not None:
                    raise Aborted
        finally:
            rank.waiting = None

    def yield_turn(self, rank: Rank, polled: Waiting | None = None) -> None:
        """Let the others run until they wait; a rank that polls must not keep them from it."""
        self.check()
        if polled is not None:
            self._look_at_polls(rank, polled)
        following = self._choose(rank)
        if following is not None and following is not rank:
            rank.polled = polled
            self._hand_over(rank, following)
            self.check()
        rank.polled = None

    def _look_at_polls(self, rank: Rank, polled: Waiting) -> None:
        """A loop that polls for what never comes ends as other deadlocks do, if later."""
        if rank.polls_seen != self.progress:
            rank.polls, rank.polls_seen, rank.polls_since = 0, self.progress, time.monotonic()
        rank.polls += 1
        waited = time.monotonic() - rank.polls_since
        if rank.polls > _MANY_POLLS and waited > self.watchdog_s:
            rank.polled = polled
            self.failure = DeadlockError(
                rank.index,
                f"rank {rank.index} polls, and no rank has communicated for {waited:.3g} s:\n"
                f"{self.table()}",
            )
            raise Aborted

    def _choose(self, rank: Rank) -> Rank | None:
        if self.failure is not None:  # all are to unwind, one after the other
            return next((r for r in self.ranks if not r.ended and r is not rank), None)
        return self.schedule.choose(rank, self.ranks)

    def _hand_over(self, rank: Rank, following: Rank) -> None:
        rank.state.take()
        self._give(following)
        rank.turn.acquire()
        if not self.abandoned:
            rank.state.put()

    def _give(self, rank: Rank) -> None:
        self.holder = rank
        rank.turn.release()

    def _found_deadlock(self) -> None:
        waiting = [r for r in self.ranks if not r.ended]
        self.failure = self.failure or DeadlockError(
            waiting[0].index, f"no rank can go on:\n{self.table()}"
        )


def _cpu_seconds(rank: Rank | None) -> float:
    try:
        assert rank is not None
        assert rank.thread is not None
        assert rank.thread.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(rank.thread.ident))
    except (AssertionError, AttributeError, OSError):  # it has ended, or there is no such clock
        return time.monotonic()


def _frames(rank: Rank | None) -> list[traceback.FrameSummary]:
    import sys

    ident = rank.thread.ident if rank is not None and rank.thread is not None else None
    frame = sys._current_frames().get(ident) if ident is not None else None
    return list(traceback.extract_stack(frame)) if frame is not None else []


def _in_a_debugger(rank: Rank | None) -> bool:
    return any(f.filename.endswith(("/bdb.py", "/pdb.py")) for f in _frames(rank))


def _stack(rank: Rank) -> str:
    return "".join(traceback.format_list(_frames(rank)[-4:]))
