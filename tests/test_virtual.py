"""Virtual ranks: one at a time, each with its own state, and failures that say what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import traceback

import pytest
import torch
import torch.distributed as dist

from kernelbench_dist.distributed_collectives import (
    get_rank,
    get_world_size,
    is_distributed_run,
    maybe_init_process_group,
)
from kernelbench_dist.distributed_collectives._errors import (
    DeadlockError,
    MismatchError,
    RankError,
)
from kernelbench_dist.distributed_collectives.spmd import SpmdOptions, run_spmd
from kernelbench_dist.distributed_collectives.virtual import Faults, InjectedError


def test_results_come_in_rank_order_and_ranks_take_turns_in_it():
    course = []

    def program(first, *, second):
        for step in range(2):
            course.append((step, dist.get_rank()))
            dist.barrier()
        return dist.get_rank(), first, second

    assert run_spmd(program, 3, ("a",), {"second": "b"}) == [(r, "a", "b") for r in range(3)]
    # The last to arrive goes on at once: it need not wait.
    assert course == [(0, 0), (0, 1), (0, 2), (1, 2), (1, 0), (1, 1)]


def test_the_rank_helpers_answer_for_the_rank():
    def program():
        assert is_distributed_run()
        assert maybe_init_process_group()
        own = os.environ
        dist.barrier()
        return get_rank(), get_world_size(), own["RANK"], own["LOCAL_RANK"], own["WORLD_SIZE"]

    assert run_spmd(program, 2) == [(0, 2, "0", "0", "2"), (1, 2, "1", "0", "2")]


def test_each_rank_has_its_own_random_state():
    def program():
        torch.manual_seed(dist.get_rank() % 2)
        drawn = []
        for _ in range(3):
            drawn.append(torch.rand(()).item())
            dist.barrier()
        return drawn

    first, second, third, _ = run_spmd(program, 4)
    torch.manual_seed(1)
    assert second == [torch.rand(()).item() for _ in range(3)]
    assert first == third != second


def test_the_callers_state_reaches_the_ranks_and_is_left_as_it_was():
    def program():
        seen = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.rand(()).item()
        torch.set_grad_enabled(True)
        torch.manual_seed(7)
        os.environ["RANK"] = "9"
        torch.set_default_dtype(torch.float64)
        return seen

    environment, hook = dict(os.environ), sys.excepthook
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        seen = run_spmd(program, 2)
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    drawn = torch.rand(()).item()
    assert seen == [(False, True, drawn)] * 2
    assert dict(os.environ) == environment
    assert sys.excepthook is hook
    assert torch.get_default_dtype() == torch.float32
    assert not dist.is_initialized()


def test_a_failure_names_the_rank_and_keeps_its_traceback():
    def fails_here():
        raise KeyError("lost")

    def program():
        dist.barrier()
        if dist.get_rank() == 1:
            fails_here()
        dist.barrier()

    with pytest.raises(RankError, match=r"rank 1 of 3 failed: KeyError: 'lost'") as caught:
        run_spmd(program, 3)
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, KeyError)
    lines = traceback.extract_tb(caught.value.__cause__.__traceback__)
    assert lines[-1].name == "fails_here"


def test_ranks_are_unwound_after_a_failure():
    unwound = []

    def program():
        try:
            if dist.get_rank() == 2:
                raise ValueError
            dist.barrier()
        finally:
            unwound.append(dist.get_rank())

    with pytest.raises(RankError):
        run_spmd(program, 4)
    assert sorted(unwound) == [0, 1, 2]  # rank 3 had not begun
    assert not [t for t in threading.enumerate() if t.name.startswith("rank ")]


@pytest.mark.parametrize(("code", "failed"), [(0, False), (None, False), (3, True)])
def test_sys_exit_in_a_rank(code, failed):
    def program():
        sys.exit(code)

    if failed:
        with pytest.raises(RankError, match="SystemExit: 3"):
            run_spmd(program, 2)
    else:
        assert run_spmd(program, 2) == [None, None]


def test_a_deadlock_lists_what_each_rank_waits_in():
    def program():
        x = torch.zeros(2, 3)
        if dist.get_rank() == 0:
            dist.recv(x, src=1, tag=5)
        elif dist.get_rank() == 2:
            dist.all_reduce(x)

    with pytest.raises(DeadlockError) as caught:
        run_spmd(program, 3)
    lines = str(caught.value).splitlines()[1:]
    assert "recv from rank 1(shape (2, 3), dtype float32" in lines[0]
    assert __file__ in lines[0]
    assert lines[1] == "  rank 1: returned"
    assert "all_reduce" in lines[2]
    assert "not called yet by ranks 0, 1" in lines[2]


def test_a_mismatch_says_what_differs_and_where():
    def program():
        dist.barrier()
        x = torch.zeros(3, dtype=torch.float64 if dist.get_rank() == 1 else torch.float32)
        dist.all_reduce(x)

    # Rank 1 came last to the barrier, and so first to the next call.
    with pytest.raises(MismatchError, match="they differ in dtype: float64 and float32") as caught:
        run_spmd(program, 2)
    assert caught.value.rank == 0
    assert str(caught.value).count(__file__) == 2
    assert "call 2" in str(caught.value)


def test_a_call_that_nobody_met():
    def program():
        if dist.get_rank() == 0:
            dist.isend(torch.ones(1), dst=1)

    with pytest.raises(DeadlockError, match=r"nobody met these calls:\n  rank 0: send to rank 1"):
        run_spmd(program, 2)


@pytest.mark.usefixtures("at_rest")
def test_a_rank_that_waits_outside_its_group_is_named():
    lock = threading.Lock()
    lock.acquire()

    def program():
        if dist.get_rank() == 1:
            lock.acquire()

    threading.Timer(3.0, lock.release).start()  # so that the thread ends
    with pytest.raises(
        DeadlockError, match=r"rank 1 has done nothing for 0.5 s(.|\n)*lock.acquire"
    ):
        run_spmd(program, 2, options=SpmdOptions(watchdog_s=0.5))


def test_ctrl_c_ends_all_ranks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import sys, time, torch.distributed as dist
            from kernelbench_dist.distributed_collectives.spmd import run_spmd

            def program():
                print("running", flush=True)
                while True:
                    time.sleep(0.01)

            run_spmd(program, 2)
        """)
    )
    ran = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert ran.stdout is not None
    assert ran.stdout.readline() == "running\n"
    ran.send_signal(signal.SIGINT)
    _, errors = ran.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
    assert ran.returncode == -signal.SIGINT


def test_a_rank_has_no_ranks():
    def program():
        run_spmd(lambda: None, 2)

    with pytest.raises(RankError, match="called within a virtual rank"):
        run_spmd(program, 2)


def test_init_process_group_joins_the_virtual_ranks():
    def program():
        dist.destroy_process_group()
        dist.init_process_group(
            "gloo", init_method="tcp://127.0.0.1:1", rank=dist_rank(), world_size=2
        )
        x = torch.ones(1)
        dist.all_reduce(x)
        group = dist.new_group([0, 1], backend="gloo")
        dist.all_reduce(x, group=group)
        return dist.get_backend(), x.item()

    def dist_rank():
        return int(os.environ["RANK"])

    assert run_spmd(program, 2) == [("gloo", 4.0)] * 2


def test_the_store_hands_the_baton_on():
    def program():
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 0:
            store.wait(["key"])
            return store.get("key")
        store.set("key", "value")
        return store.add("count", 2), store.add("count", 3)

    assert run_spmd(program, 2) == [b"value", (2, 5)]


def test_polling_hands_the_baton_on():
    def program():
        work = dist.barrier(async_op=True)
        while not work.is_completed():
            pass
        return True

    assert run_spmd(program, 3) == [True] * 3


def test_faults():
    def program():
        for _ in range(3):
            dist.barrier()

    with pytest.raises(RankError) as caught:
        run_spmd(program, 3, options=SpmdOptions(faults=Faults(fail={1: 2})))
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, InjectedError)


def test_a_seed_permutes_the_order_in_which_ranks_run():
    def course(seed):
        ran = []

        def program():
            for _ in range(4):
                ran.append(dist.get_rank())
                dist.barrier()

        run_spmd(program, 4, options=SpmdOptions(faults=Faults(seed=seed)))
        return ran

    assert course(1) == course(1)
    assert len({tuple(course(seed)) for seed in range(5)}) == 5


def test_an_in_place_collective_that_autograd_does_not_see_warns_once():
    def program():
        x = torch.ones(2, requires_grad=True)
        y = x * 2
        for _ in range(2):
            dist.all_reduce(y)

    with pytest.warns(UserWarning, match="requires grad in place") as warned:
        run_spmd(program, 2)
    assert len(warned) == 1


def test_gradients_flow_to_the_caller():
    x = torch.ones(3, requires_grad=True)
    results = run_spmd(lambda: (x * (dist.get_rank() + 1)).sum(), 3)
    torch.stack(results).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6.0, 6.0, 6.0]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"fn": 3}, TypeError, "fn is 3"),
        ({"world_size": 0}, ValueError, "world_size is 0"),
        ({"world_size": True}, ValueError, "world_size is True"),
        ({"backend": "mpi"}, ValueError, "backend is 'mpi'; one of virtual, gloo, nccl"),
        ({"options": {}}, TypeError, "options is {}"),
        ({"options": SpmdOptions(faults=Faults(fail={2: 1}))}, ValueError, "rank 2 of 2 ranks"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    arguments = {"fn": lambda: None, "world_size": 2, **arguments}
    with pytest.raises(error, match=message):
        run_spmd(**arguments)


def test_wrong_options():
    with pytest.raises(ValueError, match="order is 'ring'; rank or gloo_ring is accepted"):
        SpmdOptions(order="ring")
    with pytest.raises(ValueError, match="watchdog_s is 0"):
        SpmdOptions(watchdog_s=0)


def test_outside_of_a_run_the_backend_says_so():
    with pytest.raises(RuntimeError, match="has ranks only within run_spmd"):
        dist.init_process_group("virtual", store=dist.HashStore(), rank=0, world_size=1)
    assert not dist.is_initialized()
