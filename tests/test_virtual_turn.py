"""Turns: threads that hand on to each other, with the extension's Turn and with Python's lock."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import pytest

from kernelbench_dist import _build
from kernelbench_dist.distributed_collectives.virtual import _turn

TURNS = [_turn._LockTurn]
if _turn.Turn is not _turn._LockTurn:
    TURNS.append(_turn.Turn)

with_turns = pytest.mark.parametrize("turn", TURNS, ids=lambda kind: kind.__module__)
on_linux = pytest.mark.skipif(
    not (_build.EXTENSION and sys.platform == "linux"), reason="needs the extension, and Linux"
)


def around(turns: list[Any], rounds: int) -> list[int]:
    """One thread a turn, each of which runs in its turn: who ran, in order."""
    ran: list[int] = []

    def thread(i: int) -> None:
        following = turns[(i + 1) % len(turns)]
        turns[i].wait()
        for _ in range(rounds):
            ran.append(i)
            turns[i].swap(following)
        following.give()

    threads = [threading.Thread(target=thread, args=(i,)) for i in range(len(turns))]
    for each in threads:
        each.start()
    turns[0].give()
    for each in threads:
        each.join(20)
        assert not each.is_alive()
    return ran


@on_linux
def test_the_extension_has_a_turn() -> None:
    assert _turn.Turn.__module__ == "kernelbench_dist._C"


@with_turns
@pytest.mark.parametrize("size", [2, 3, 16])
def test_each_runs_in_its_turn(turn: Any, size: int) -> None:
    assert around([turn() for _ in range(size)], 200) == [*range(size)] * 200


@with_turns
def test_given_before_it_is_waited_for(turn: Any) -> None:
    one = turn()
    one.give()
    one.wait()  # else the test's time limit ends it


@with_turns
def test_who_waits_keeps_nobody_from_running(turn: Any) -> None:
    one = turn()
    waits = threading.Thread(target=one.wait)
    waits.start()
    assert sum(range(1000)) == 499500  # the GIL is free
    assert waits.is_alive()
    one.give()
    waits.join(20)
    assert not waits.is_alive()


@on_linux
def test_only_a_turn_is_swapped() -> None:
    with pytest.raises(TypeError, match="swap takes a Turn, not 3"):
        _turn.Turn().swap(3)


@on_linux
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_thread_has_its_own_cores_when_it_runs() -> None:
    """Also those that it has given itself in between."""
    every = os.sched_getaffinity(0)
    one = {min(every)}
    first, second = _turn.Turn(), _turn.Turn()
    seen = []

    def other() -> None:
        second.wait()
        for cores in (every, one, every):
            seen.append(os.sched_getaffinity(0))
            os.sched_setaffinity(0, cores)
            second.swap(first)
        seen.append(os.sched_getaffinity(0))
        first.give()

    thread = threading.Thread(target=other)
    thread.start()
    for _ in range(4):
        first.swap(second)
        assert os.sched_getaffinity(0) == every
    thread.join(20)
    assert seen == [every, every, one, every]
