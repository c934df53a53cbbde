"""R ranks as threads of one process, of which one runs at a time: the one that has the baton.

A rank hands the baton on where it has to wait for others, to the next in rank order that can go on.
So every run takes the same course, and what a rank computes between two such points is as it would
be in a process of its own: at each hand-over the rank's own state (see `_state`) is put in place.
Where no rank can go on, that is a deadlock, and known at once.
"""

from __future__ import annotations

import contextvars
import itertools
import math
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import torch

from kernelbench_dist.distributed_collectives._current import become_rank, current_rank
from kernelbench_dist.distributed_collectives._errors import DeadlockError, RankError
from kernelbench_dist.distributed_collectives.virtual import _aborted
from kernelbench_dist.distributed_collectives.virtual._aborted import Aborted, Signal
from kernelbench_dist.distributed_collectives.virtual._calls import Call, Meetings, line_of
from kernelbench_dist.distributed_collectives.virtual._schedule import InRankOrder, Schedule
from kernelbench_dist.distributed_collectives.virtual._sleep import SleepsHandOn
from kernelbench_dist.distributed_collectives.virtual._state import RankState, Surroundings
from kernelbench_dist.distributed_collectives.virtual._turn import Turn
from kernelbench_dist.distributed_collectives.virtual._watchdog import Watchdog, stack

_MANY_POLLS = 100  # fewer may lie between long computations
_UNWIND_S = 2.0  # how long a rank may take to end once it is told to
_UNWIND_IDLE_S = 10.0  # how long it may do nothing at all meanwhile: wait for a thread of its own
_OFTEN_TOLD = 10  # more than the `finally` clauses of a program that communicate


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
        self.turn = Turn()
        self.gate = threading.RLock()  # who holds it keeps Aborted from arriving
        self.told = 0  # to end, where it communicates after the run has failed
        self.left = False  # the run has gone on without it
        self.in_program = False
        self.thread: threading.Thread | None = None
        self.ended = False
        self.waiting: Waiting | None = None
        self.result: Any = None
        self.calls = 0  # of communication so far
        self.pending: dict[Call, None] = {}  # those that are not done, in any group
        self.outside: list[tuple[int, ...]] = []  # groups that were made without it
        self.maker: Any = None  # a Member of the group in which groups are made
        self.polled: Waiting | None = None
        self.sleeps_at = ""
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
        if self.sleeps_at:
            return f"sleeps at {self.sleeps_at}"
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
        self.abandoned = False  # ranks that could not be ended may unwind after the run
        self.told_since: float | None = None
        self.sleeping_s = 0.0  # of CPU time: what sleeping itself costs
        self.progress = 0  # counts what may let a rank go on
        self.holder: Rank | None = None
        self.held_since = 0.0
        self._over = Signal()

    # In the caller's thread

    def start(self, programs: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run one program a rank, and return what they return."""
        watchdog = Watchdog(self)
        with self.surroundings, SleepsHandOn():
            try:
                context = contextvars.copy_context()
                for rank, program in zip(self.ranks, programs, strict=True):
                    rank.thread = threading.Thread(
                        target=context.copy().run,
                        args=(self._thread, rank, program),
                        name=f"rank {rank.index}",
                        daemon=True,
                    )
                    rank.thread.start()
                first = self.schedule.choose(None, self.ranks)
                assert first is not None
                self._give(first)
                self._wait_for_the_end(watchdog)
            except BaseException as error:  # Ctrl-C
                self._stop(error)
                raise
            # Each has handed the baton on for good, and has a few steps left, at most.
            for rank in self.ranks:
                if rank.thread is not None and not rank.left and not self.abandoned:
                    rank.thread.join()
        if self.failure is not None:
            raise self.failure
        return [rank.result for rank in self.ranks]

    def _wait_for_the_end(self, watchdog: Watchdog) -> None:
        while not self._over.wait(min(1.0, self.watchdog_s / 4)):
            limit = self.watchdog_s
            if self.failure is not None:
                limit = min(limit, _UNWIND_IDLE_S)
            rank = self.holder
            if limit == math.inf or watchdog.idle_s() <= limit or rank is None:
                continue
            self._stop(
                DeadlockError(
                    rank.index,
                    f"rank {rank.index} has done nothing for {self.watchdog_s:g} s, and waits for "
                    "something that is no operation of its group (a lock, a queue, a sleep, a "
                    f"file), while all others wait for it:\n{stack(rank)}{self.table()}",
                )
            )
            return

    def _stop(self, error: BaseException) -> None:
        """End all ranks: each is unwound as soon as it runs Python code."""
        self.failure = self.failure or error
        if self.holder is None:  # none has begun, and some may have no thread yet
            for rank in self.ranks:
                rank.ended = rank.thread is None or not rank.thread.is_alive()
            self._pass_on_for_good(self.ranks[-1])
        try:
            if not self._is_over_within(_UNWIND_S) and self.holder is not None:
                self._leave(self.holder)  # all others can be unwound
                self.abandoned = not self._is_over_within(_UNWIND_S)
                _aborted.forget()
        except BaseException:  # Ctrl-C again
            self.abandoned = True
            raise

    def _is_over_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self._over.wait(0.1):
            if time.monotonic() > deadline:
                return False
            if self.holder is not None:
                _tell(self.holder)
        return True

    def _leave(self, rank: Rank) -> None:
        """Go on without a rank that does not end."""
        # Who has the gate hands the baton on: then there is nobody to leave.
        if rank.gate.acquire(blocking=False):
            try:
                if self.holder is rank and not rank.ended:
                    rank.left = rank.ended = True
                    assert rank.thread is not None
                    rank.thread.name = f"left by its run: rank {rank.index}"
                    self._pass_on_for_good(rank)
            finally:
                rank.gate.release()

    def table(self) -> str:
        """What each rank is doing, a line a rank."""
        return "\n".join(f"  rank {r.index}: {r.describe()}" for r in self.ranks)

    # In the ranks' threads

    def _thread(self, rank: Rank, program: Callable[[], Any]) -> None:
        become_rank(rank)
        rank.turn.wait()
        try:
            try:
                if self.failure is None:
                    self.surroundings.enter_thread()
                    rank.state.put()
                    rank.in_program = True  # until here no Aborted is sent
                    rank.result = program()
            finally:
                self._shut(rank)
        except Aborted:
            pass
        except SystemExit as error:
            if error.code not in (None, 0):
                self._fail(rank, error)
        except BaseException as error:
            self._fail(rank, error)
        finally:
            self._shut(rank)  # again: one that arrived in the first has kept it from its work
            if not rank.left:
                rank.ended, rank.waiting = True, None
                self.progress += 1
                self._pass_on_for_good(rank)

    def _shut(self, rank: Rank) -> None:
        """From here on no Aborted arrives; one that was on its way is raised."""
        rank.gate.acquire()
        _aborted.receive()

    def _fail(self, rank: Rank, error: BaseException) -> None:
        if self.failure is not None:
            return
        if isinstance(error, RankError | KeyboardInterrupt):
            self.failure = error
            return
        said = "".join(traceback.format_exception_only(type(error), error)).strip()
        line = line_of(error)
        where = f"\n  at {line}" if line else ""
        self.failure = RankError(
            rank.index, f"rank {rank.index} of {len(self.ranks)} failed: {said}{where}"
        )
        self.failure.__cause__ = error

    def end_with(self, rank: Rank, error: Exception) -> NoReturn:
        """End the run with this rank's failure, whatever its program would catch."""
        self._fail(rank, error)
        self.check()
        raise Aborted

    def _pass_on_for_good(self, rank: Rank) -> None:
        following = self._choose(rank)
        if following is None and not all(r.ended for r in self.ranks):
            self._found_deadlock()
            following = self._choose(rank)
        if following is None:
            self._look_for_what_is_left()
            self._over.set()
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
        """Unwind the rank that runs, after the run has failed."""
        if self.failure is None:
            return
        rank = current_rank()
        if rank is not None:
            rank.told += 1
            if self.told_since is None:
                self.told_since = time.monotonic()
            if rank.told > _OFTEN_TOLD and time.monotonic() > self.told_since + _UNWIND_S:
                # It catches whatever it is told, and goes on. It ends no more: it stands still.
                self._leave(rank)
                while rank.left:
                    rank.turn.wait()
        raise Aborted

    def sleeps(self, rank: Rank) -> None:
        """The others run before it sleeps, each until it waits or sleeps, too."""
        if self.failure is None or not rank.told:  # what it does at its end, it may do in peace
            self.yield_turn(rank)

    def meetings_of(self, rank: Rank, name: str, ranks: tuple[int, ...]) -> Meetings:
        """Where the ranks of a group meet: each gets there by making the group."""
        turn = rank.groups[name, ranks] = rank.groups.get((name, ranks), 0) + 1
        return self.groups.setdefault((name, ranks, turn), Meetings(name, ranks, strict=True))

    def makes_group(self, rank: Rank, ranks: Sequence[int]) -> None:
        """All ranks make the same groups in the same order; none waits for that."""
        from kernelbench_dist.distributed_collectives.virtual._member import Member

        if rank.maker is None:
            rank.maker = Member(rank, rank.index, self.making)
        rank.maker.collective(Call("new_group", agree=(("ranks", ", ".join(map(str, ranks))),)))

    def wait(self, rank: Rank, waiting: Waiting) -> None:
        """Come back when `waiting` is ready; others run meanwhile."""
        self.check()
        rank.waiting = waiting
        try:
            while not waiting.ready():
                following = self._choose(rank)
                if following is None:
                    self._found_deadlock()
                elif following is not rank:
                    self._hand_over(rank, following)
                self.check()
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
            return next((r for r in self.ranks if not r.ended), None)
        return self.schedule.choose(rank, self.ranks)

    def _hand_over(self, rank: Rank, following: Rank) -> None:
        with rank.gate:
            _aborted.receive()
            if self.failure is not None:  # since the caller looked
                return
            rank.state.take()
            self.holder = following
            rank.turn.swap(following.turn)
            if not self.abandoned:
                rank.state.put()

    def _give(self, rank: Rank) -> None:
        self.holder = rank
        rank.turn.give()

    def _found_deadlock(self) -> None:
        waiting = [r for r in self.ranks if not r.ended]
        self.failure = self.failure or DeadlockError(
            waiting[0].index, f"no rank can go on:\n{self.table()}"
        )


def _tell(rank: Rank) -> None:
    """Have Aborted raised in a rank that runs its program."""
    if rank.in_program and rank.gate.acquire(blocking=False):
        try:
            assert rank.thread is not None
            _aborted.send(rank.thread)
        finally:
            rank.gate.release()
