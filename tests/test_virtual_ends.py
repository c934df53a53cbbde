"""How a run on virtual ranks ends whose ranks do not help, and what the watchdog takes for work.

No test asserts a time: those that would not end are ended by pytest's timeout.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from kernelbench_dist.distributed_collectives._errors import DeadlockError, RankError
from kernelbench_dist.distributed_collectives.spmd import SpmdOptions, run_spmd
from kernelbench_dist.distributed_collectives.virtual import _baton

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch, at_rest: None) -> None:
    monkeypatch.setattr(_baton, "_UNWIND_S", 0.3)
    monkeypatch.setattr(_baton, "_UNWIND_IDLE_S", 0.3)


def rank_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "rank " in thread.name}


@pytest.fixture
def held() -> Iterator[threading.Lock]:
    """A lock that nobody releases before the test is over; then the thread that waits ends."""
    before, lock = rank_threads(), threading.Lock()
    lock.acquire()
    yield lock
    lock.release()
    for thread in rank_threads() - before:
        thread.join()


# Ranks that do not end


@pytest.mark.usefixtures("hurry")
def test_a_rank_that_swallows_everything_is_left_and_the_others_are_unwound() -> None:
    before, unwound = rank_threads(), []

    def program() -> None:
        rank = dist.get_rank()
        try:
            while rank == 1:
                with contextlib.suppress(BaseException):
                    dist.barrier()
            if rank == 3:
                raise ValueError("first")
            while True:
                dist.barrier()
        finally:
            unwound.append(rank)

    with pytest.raises(RankError, match="rank 3 of 4 failed: ValueError: first"):
        run_spmd(program, 4)
    assert sorted(unwound) == [0, 2, 3]
    assert len(rank_threads() - before) == 1  # it stands still, and computes no more
    assert run_spmd(dist.get_rank, 2) == [0, 1]


@pytest.mark.usefixtures("hurry")
def test_all_ranks_may_swallow_everything() -> None:
    def program() -> None:
        dist.barrier()
        if dist.get_rank() == 5:
            raise ValueError("first")
        while True:
            try:
                dist.all_reduce(torch.ones(1))
            except BaseException:
                time.sleep(0.001)

    with pytest.raises(RankError, match="rank 5 of 8 failed"):
        run_spmd(program, 8)


@pytest.mark.usefixtures("hurry")
def test_a_rank_that_computes_at_its_end_is_let_to() -> None:
    computed = []

    def program() -> None:
        if dist.get_rank() == 1:
            raise ValueError("first")
        try:
            dist.barrier()
        finally:
            until = time.thread_time() + 1.0
            while time.thread_time() < until:
                pass
            for _ in range(3):
                try:
                    dist.barrier()
                except BaseException:
                    time.sleep(0.01)
            computed.append(dist.get_rank())

    with pytest.raises(RankError, match="rank 1 of 2 failed: ValueError: first"):
        run_spmd(program, 2)
    assert computed == [0]


@pytest.mark.usefixtures("hurry")
def test_a_rank_that_waits_for_ever_at_its_end_hides_no_failure(held: threading.Lock) -> None:
    unwound = []

    def program() -> None:
        try:
            dist.barrier()
            if dist.get_rank() == 2:
                raise ValueError("first")
            dist.barrier()
        finally:
            if dist.get_rank() == 0:
                held.acquire()
            unwound.append(dist.get_rank())

    with pytest.raises(RankError, match="rank 2 of 3 failed: ValueError: first"):
        run_spmd(program, 3)
    assert sorted(unwound) == [1, 2]
    sys.settrace(lambda *_: None)  # as debuggers do
    try:
        assert rank_threads()
    finally:
        sys.settrace(None)


@pytest.mark.parametrize("where", ["become_rank", "Run._fail"])
def test_nothing_is_raised_in_a_rank_that_begins_or_has_come_to_its_end(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", noise.append)
    before = rank_threads()
    owner = _baton.Run if "." in where else _baton
    own = getattr(owner, where.rpartition(".")[2])

    def slow(*args: Any) -> None:
        while run.failure is None:
            threading.Event().wait(0.1)
        for _ in range(4):  # the run is ended meanwhile
            threading.Event().wait(0.1)
        own(*args)

    monkeypatch.setattr(owner, where.rpartition(".")[2], slow)
    run = _baton.Run(2, torch.device("cpu"), watchdog_s=0.2)
    with pytest.raises(DeadlockError, match=r"rank 0 has done nothing for 0.2 s"):
        run.start([lambda: 1 // 0] * 2)
    for thread in rank_threads() - before:
        thread.join()
    assert not noise


@pytest.mark.parametrize("step", range(1, 150, 5))
def test_ctrl_c_at_any_step_of_the_callers_wait_ends_the_run(step: int) -> None:
    def program() -> None:
        while True:
            dist.barrier()
            time.sleep(0.001)  # without it, the caller has to wait for Python's lock

    before = rank_threads()
    steps = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        code: FrameType | None = frame
        while code is not None and code.f_code is not _baton.Run._wait_for_the_end.__code__:
            code = code.f_back
        steps += event == "opcode" and code is not None
        if steps == step:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_spmd(program, 2, options=SpmdOptions(watchdog_s=0.4))
    finally:
        sys.settrace(None)
    assert rank_threads() <= before


# What the watchdog takes for work


BUSY = """
import time
until = time.process_time() + 2.0
while time.process_time() < until:
    pass
"""


def test_a_rank_works_while_its_child_process_does() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            subprocess.run([sys.executable, "-c", BUSY], check=True)
        dist.barrier()

    run_spmd(program, 2, options=SpmdOptions(watchdog_s=1.0))


def test_a_rank_works_while_a_thread_of_its_own_does() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            thread = threading.Thread(target=exec, args=(BUSY.replace("process", "thread"), {}))
            thread.start()
            thread.join()
        dist.barrier()

    run_spmd(program, 2, options=SpmdOptions(watchdog_s=0.4))


@pytest.mark.usefixtures("hurry")
def test_a_rank_does_not_work_while_a_thread_of_the_caller_does(held: threading.Lock) -> None:
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            pass

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        with pytest.raises(DeadlockError, match=r"rank 0 has done nothing for 0.4 s"):
            run_spmd(held.acquire, 1, options=SpmdOptions(watchdog_s=0.4))
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="nothing tells of it")
def test_a_rank_that_gets_no_core_works() -> None:
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(20 * (os.cpu_count() or 1))
    ]
    try:

        def program() -> None:
            until = time.thread_time() + 0.2
            while time.thread_time() < until:
                pass
            dist.barrier()

        # Children that compute are work, too: only what is the rank's own is looked at here.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "kernelbench_dist.distributed_collectives.virtual._watchdog.Watchdog"
                "._work_of_children",
                lambda self: 0.0,
            )
            run_spmd(program, 2, options=SpmdOptions(watchdog_s=0.4))
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.usefixtures("hurry")
def test_the_watchdog_shows_the_users_lines_alone() -> None:
    def waits_here() -> None:
        queue.Queue().get(timeout=30)  # in queue, which waits in threading

    with pytest.raises(DeadlockError) as caught:
        run_spmd(waits_here, 1, options=SpmdOptions(watchdog_s=0.2))
    files = [line for line in str(caught.value).splitlines() if line.startswith("  File ")]
    assert len(files) == 1
    assert __file__ in files[0]
    assert files[0].endswith("in waits_here")


# Ranks that sleep


def test_a_rank_that_sleeps_lets_the_others_run() -> None:
    flag: list[int] = []
    course: list[str] = []

    def program() -> None:
        rank = dist.get_rank()
        while rank == 0 and not flag:
            course.append("0 polls")
            time.sleep(0.01)
        for step in range(2 if rank == 1 else 0):
            course.append(f"1 does {step}")
            time.sleep(0.001)
        flag.append(rank)
        course.append(f"{rank} ends")

    run_spmd(program, 2)
    assert course == ["0 polls", "1 does 0", "0 polls", "1 does 1", "0 polls", "1 ends", "0 ends"]


def test_a_package_that_sleeps_with_a_lock_keeps_the_baton() -> None:
    lock, course = threading.Lock(), []
    file = os.path.join(sysconfig.get_path("purelib"), "locks.py")
    waits: dict[str, Any] = {"time": time}
    exec(compile("def wait(): time.sleep(0.01)", file, "exec"), waits)

    def program() -> None:
        with lock:
            waits["wait"]()
            course.append(dist.get_rank())

    run_spmd(program, 2, options=SpmdOptions(watchdog_s=5.0))
    assert course == [0, 1]


def test_a_rank_sleeps_as_long_as_it_asks_for_and_others_meanwhile() -> None:
    def program() -> float:
        began = time.monotonic()
        time.sleep(0.3 if dist.get_rank() == 0 else 0.2)
        return time.monotonic() - began

    first, second = run_spmd(program, 2)
    assert first >= 0.3
    assert second >= 0.2


def test_sleep_is_the_callers_own_again_and_refuses_what_it_refuses() -> None:
    own = time.sleep

    def program() -> None:
        assert time.sleep is not own
        time.sleep(-1)

    with pytest.raises(RankError, match="failed: ValueError: sleep length must be non-negative"):
        run_spmd(program, 2)
    assert time.sleep is own


def test_a_rank_that_sleeps_is_unwound() -> None:
    unwound = []

    def program() -> None:
        try:
            while dist.get_rank() == 0:
                time.sleep(0.001)
            raise ValueError("first")
        finally:
            unwound.append(dist.get_rank())

    with pytest.raises(RankError, match="rank 1 of 2 failed: ValueError: first"):
        run_spmd(program, 2)
    assert sorted(unwound) == [0, 1]


@pytest.mark.parametrize("seconds", [0.01, 0.001])
def test_ranks_that_all_poll_for_ever_are_found(seconds: float) -> None:
    def program() -> None:
        while True:
            time.sleep(seconds)

    with pytest.raises(DeadlockError, match=r"has done nothing for 0.5 s(.|\n)*rank 2: sleeps at"):
        run_spmd(program, 3, options=SpmdOptions(watchdog_s=0.5))
