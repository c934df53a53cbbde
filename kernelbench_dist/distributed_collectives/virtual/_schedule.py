"""Which rank runs next, and what is done to ranks on purpose, for tests of programs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kernelbench_dist.distributed_collectives.virtual._baton import Rank


class InjectedError(RuntimeError):
    """Raised in a rank that `Faults.fail` names."""


class Schedule(Protocol):
    def choose(self, rank: Rank | None, ranks: Sequence[Rank]) -> Rank | None:
        """The rank that runs after `rank`; None where none can."""
        ...

    def called(self, rank: Rank) -> bool:
        """Before a rank's call of communication; True: others run first."""
        ...


class InRankOrder:
    """The next rank that can go on, around in a circle."""

    def choose(self, rank: Rank | None, ranks: Sequence[Rank]) -> Rank | None:
        count = len(ranks)
        start = 0 if rank is None else rank.index + 1
        for i in range(start, start + count):
            following = ranks[i % count]
            if following.can_go_on():
                return following
        return None

    def called(self, rank: Rank) -> bool:
        return False


@dataclass(frozen=True)
class Faults:
    """What is done to the ranks of a run on purpose.

    seed: with a seed the ranks run in a random order, the same for the same seed: at every call of
        communication, blocking or not, some rank that can go on is drawn. None: in rank order.
    delay: for a rank, how often others are preferred to it before it has its first turn.
    fail: for a rank, the number (from 1) of its call of communication that raises InjectedError.

    >>> Faults(seed=3, delay={1: 10}, fail={0: 2})
    Faults(seed=3, delay={1: 10}, fail={0: 2})
    """

    seed: int | None = None
    delay: Mapping[int, int] = field(default_factory=dict)
    fail: Mapping[int, int] = field(default_factory=dict)

    def check(self, world_size: int) -> None:
        for name, least in (("delay", 0), ("fail", 1)):
            for rank, count in getattr(self, name).items():
                if not 0 <= rank < world_size:
                    raise ValueError(f"faults: {name} names rank {rank} of {world_size} ranks")
                if count < least:
                    raise ValueError(
                        f"faults: {name}[{rank}] is {count}; {least} or more is accepted"
                    )


class WithFaults:
    """A schedule that does what `Faults` says."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.random = None if faults.seed is None else random.Random(faults.seed)
        self.delays = dict(faults.delay)

    def choose(self, rank: Rank | None, ranks: Sequence[Rank]) -> Rank | None:
        count = len(ranks)
        start = 0 if rank is None else rank.index + 1
        able = [r for i in range(start, start + count) if (r := ranks[i % count]).can_go_on()]
        if not able:
            return None
        prompt = [r for r in able if self.delays.get(r.index, 0) <= 0]
        for r in able:
            if prompt and r not in prompt:
                self.delays[r.index] -= 1
        choice = prompt or able
        return choice[0] if self.random is None else self.random.choice(choice)

    def called(self, rank: Rank) -> bool:
        if self.faults.fail.get(rank.index) == rank.calls:
            raise InjectedError(f"call {rank.calls} of rank {rank.index} fails on purpose")
        return self.random is not None
