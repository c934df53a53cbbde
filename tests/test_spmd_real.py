"""run_spmd on real processes: those that it starts, and those that torchrun has started."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from kernelbench_dist.distributed_collectives import RankError, run_spmd

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")

Pair = namedtuple("Pair", "first second")

# What the ranks run: found by name in their processes


def describe(first, *, second):
    total = torch.ones(2)
    dist.all_reduce(total)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {
        "arguments": (first, second),
        "rank": dist.get_rank(),
        "environment": {name: os.environ[name] for name in names},
        "backend": dist.get_backend(),
        "total": total.tolist(),
        "threads": torch.get_num_threads(),
        "torchrun": dist.is_torchelastic_launched(),
    }


def tensors(x):
    rank = dist.get_rank()
    x += rank
    weight = torch.nn.Parameter(torch.full((2,), float(rank)))
    table = torch.arange(1000.0)
    return {
        "changed": x,
        "nested": [Pair(weight, (weight * 2, None)), {"view": table[rank : rank + 2]}],
        "big": torch.full((3_000_000 * rank + 1,), rank, dtype=torch.int64),
        "bfloat16": torch.ones(2, 3, dtype=torch.bfloat16).T,
        "conjugated": torch.tensor([1 + 2j]).conj(),
    }


class AwkwardError(Exception):
    """Pickles, and cannot be unpickled."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def fails(kind):
    if dist.get_rank() == 1:
        if kind == "exit":
            os._exit(3)
        if kind == "sys.exit":
            sys.exit(4)
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise {"ValueError": ValueError("boom"), "awkward": AwkwardError("this", "that")}[kind]
    dist.barrier()  # the others wait for rank 1


def returns_early():
    if dist.get_rank() == 1:
        sys.exit(0)
    return "result"


def unpicklable_result():
    return (lambda: 1) if dist.get_rank() == 1 else 1


def sharded_result():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(torch.ones(4), init_device_mesh("cpu", (2,)), [Shard(0)])


def group_size():
    return dist.get_world_size()


def cuda_sum():
    from kernelbench_dist.distributed_collectives import default_device

    x = torch.ones(2, device=default_device())
    dist.all_reduce(x)
    assert x.is_cuda
    return x


# Processes that are started


def test_a_rank_is_as_under_torchrun():
    results = run_spmd(describe, 2, ("a",), {"second": "b"}, backend="gloo")
    [port] = {result["environment"].pop("MASTER_PORT") for result in results}
    assert 0 < int(port) < 65536
    for r, result in enumerate(results):
        assert result == {
            "arguments": ("a", "b"),
            "rank": r,
            "environment": {
                "RANK": str(r),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": str(r),
                "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
            },
            "backend": "gloo",
            "total": [2.0, 2.0],
            "threads": max(1, torch.get_num_threads() // 2),
            "torchrun": True,
        }
    assert "RANK" not in os.environ
    assert not dist.is_initialized()


@pytest.mark.slow
def test_tensors_come_back_detached_and_whole():
    x = torch.zeros(2)
    results = run_spmd(tensors, 3, (x,), backend="gloo")
    assert x.tolist() == [0, 0]  # each rank has a copy of its own
    for r, result in enumerate(results):
        assert result["changed"].tolist() == [r, r]
        pair, view = result["nested"]
        assert isinstance(pair, Pair)
        assert pair.first.tolist() == [r, r]
        assert pair.second[0].tolist() == [2 * r, 2 * r]
        assert not pair.first.requires_grad
        assert not pair.second[0].requires_grad
        assert view["view"].tolist() == [r, r + 1]
        assert view["view"].untyped_storage().nbytes() == 8  # not the table of 4000
        assert result["big"].shape == (3_000_000 * r + 1,)
        assert (result["big"] == r).all()
        assert result["bfloat16"].dtype == torch.bfloat16
        assert result["bfloat16"].stride() == (1, 3)
        assert result["conjugated"].tolist() == [1 - 2j]


def children() -> list[psutil.Process]:
    """Without the one that multiprocessing keeps."""
    found = []
    for process in psutil.Process().children(recursive=True):
        if "resource_tracker" not in " ".join(process.cmdline()):
            found.append(process)
    return found


@pytest.mark.slow
def test_an_exception_ends_all_ranks():
    before = children()
    with pytest.raises(RankError, match=r"rank 1 of 3 failed: ValueError: boom") as caught:
        run_spmd(fails, 3, ("ValueError",), backend="gloo")
    assert caught.value.rank == 1
    cause = caught.value.__cause__
    assert type(cause) is ValueError
    assert cause.args == ("boom",)
    assert "in fails" in str(cause.__cause__)  # where it was raised in the other process
    assert children() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("exit", "rank 1 of 2 failed: the process ended with exit code 3 before its program did"),
        ("sys.exit", "rank 1 of 2 failed: SystemExit: 4"),
        ("kill", "rank 1 of 2 failed: the process was killed by SIGKILL"),
        ("awkward", "rank 1 of 2 failed: .*AwkwardError: this and that"),
    ],
)
def test_a_rank_that_dies_is_named(kind, message):
    with pytest.raises(RankError, match=message) as caught:
        run_spmd(fails, 2, (kind,), backend="gloo")
    assert caught.value.rank == 1
    if kind == "awkward":
        assert "AwkwardError: this and that" in str(caught.value.__cause__)
        assert "in fails" in str(caught.value.__cause__.__cause__)


@pytest.mark.slow
def test_leaving_by_sys_exit_is_no_failure():
    assert run_spmd(returns_early, 2, backend="gloo") == ["result", None]


@pytest.mark.slow
def test_a_result_that_cannot_leave_its_rank():
    with pytest.raises(RankError, match=r"rank 1 of 2 failed: .*pickle") as caught:
        run_spmd(unpicklable_result, 2, backend="gloo")
    assert caught.value.rank == 1
    with pytest.raises(RankError, match=r"TypeError: a DTensor .* x.full_tensor\(\)"):
        run_spmd(sharded_result, 2, backend="gloo")


def test_what_cannot_be_pickled_is_refused():
    def local():
        pass

    for fn in (lambda: 1, local, functools.partial(local)):
        with pytest.raises(TypeError, match=r"fn is .* cannot be pickled: .* top level"):
            run_spmd(fn, 2, backend="gloo")
    with pytest.raises(TypeError, match=r"args is .* cannot be pickled"):
        run_spmd(group_size, 2, (lambda: 1,), backend="gloo")
    with pytest.raises(TypeError, match=r"kwargs is .* cannot be pickled"):
        run_spmd(group_size, 2, (), {"a": lambda: 1}, backend="gloo")


def test_devices_that_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=r"3 ranks need 3 GPUs.* torch sees 2"):
        run_spmd(group_size, 3, backend="nccl")
    with pytest.raises(ValueError, match=r"3 ranks need 3 GPUs.* torch sees 2"):
        run_spmd(group_size, 3, backend="gloo", device="cuda")
    with pytest.raises(ValueError, match="device is 'cpu'; with backend 'nccl' cuda is accepted"):
        run_spmd(group_size, 2, backend="nccl", device="cpu")
    with pytest.raises(ValueError, match=r"device is 'cuda:1'; .* cpu or cuda is accepted"):
        run_spmd(group_size, 2, backend="gloo", device="cuda:1")


@pytest.mark.gpu
@pytest.mark.slow
def test_nccl_has_a_gpu_for_each_rank():
    size = min(4, torch.cuda.device_count())
    results = run_spmd(cuda_sum, size, backend="nccl")
    assert [(x.device.type, x.tolist()) for x in results] == [("cpu", [size, size])] * size


# Scripts. A rank says its process id, and that it is up.


HEAD = """
import os, sys, time
import torch, torch.distributed as dist
from kernelbench_dist.distributed_collectives import RankError, run_spmd
def say(*words):
    os.write(1, (" ".join(map(str, words)) + chr(10)).encode())  # in one piece
torch.set_num_threads(1)
"""


def start(script: Path, *before: str, **options) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, *before, str(script)]
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not any(psutil.pid_exists(pid) and not is_zombie(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_the_caller(write, sent):
    script = write(
        HEAD
        + """
def program():
    if dist.get_rank() == 0:
        child = os.fork()
        if child == 0:
            time.sleep(1000)  # of rank 0's own: ended with it, if it can be
        say("child", child)
    dist.barrier()
    say("rank", os.getpid())
    time.sleep(1000)
if __name__ == "__main__":
    run_spmd(program, 2, backend="gloo")
"""
    )
    process = start(script)
    pids = {"child": [], "rank": []}
    for _ in range(3):
        kind, pid = process.stdout.readline().split()
        pids[kind].append(int(pid))
    try:
        assert len(pids["rank"]) == 2
        process.send_signal(sent)
        assert gone(pids["rank"])
        if sent == signal.SIGINT:
            assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
            assert gone(pids["child"])
        process.wait(60)
    finally:
        for pid in pids["child"] + pids["rank"]:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_what_ranks_print_goes_through(write):
    script = write(
        HEAD
        + """
def program():
    print(f"out {dist.get_rank()}")
    print(f"err {dist.get_rank()}", file=sys.stderr)
    if dist.get_rank() == 1:
        raise ValueError("after printing")
    time.sleep(1000)
if __name__ == "__main__":
    try:
        run_spmd(program, 2, backend="gloo")
    except RankError as error:
        print(error)
"""
    )
    out, err = start(script).communicate(timeout=120)
    # Rank 0 is ended with what it has not yet written out; the ends of lines may be rank 0's.
    assert "out 1" in out
    assert "err 1" in err
    assert "rank 1 of 2 failed: ValueError: after printing\n" in out
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_script_without_a_main_guard_is_told_of_it(write):
    script = write(
        HEAD
        + """
def program():
    pass
try:
    run_spmd(program, 2, backend="gloo")
except RankError as error:
    print(error)
"""
    )
    out, _ = start(script).communicate(timeout=120)
    assert "exit code 1 before its program began" in out
    assert "`if __name__ == '__main__':`" in out


@pytest.mark.slow
def test_a_main_module_without_a_file_is_refused():
    code = (
        HEAD + "def f(): pass\ntry: run_spmd(f, 2, backend='gloo')\nexcept TypeError as e: say(e)"
    )
    process = start(Path(code), "-c")
    assert "a __main__ that has no file" in process.communicate(timeout=120)[0]


# Processes that are there


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture
def lone_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_group_that_is_there_is_joined(lone_group):
    for _ in range(2):
        assert run_spmd(lambda x: x + dist.get_world_size(), 1, (2,), backend="gloo") == [3]
        assert dist.is_initialized()
    with pytest.raises(ValueError, match=r"world_size is 2, but .* one of 1 .* 1 is accepted"):
        run_spmd(group_size, 2, backend="gloo")
    error = ValueError("boom")
    with pytest.raises(RankError, match="rank 0 of 1 failed: ValueError: boom") as caught:
        run_spmd(functools.partial(raise_, error), 1, backend="gloo")
    assert caught.value.__cause__ is error
    assert run_spmd(group_size, 1, backend="gloo") == [1]  # a failure leaves the group as it was
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match=r"device is 'cuda', but default_device\(\) is 'cpu'"):
            run_spmd(group_size, 1, backend="gloo", device="cuda")


def raise_(error):
    raise error


def test_virtual_ranks_are_joined_too():
    """As where `kernelbench-dist run` runs a script that asks for gloo."""

    def program():
        return run_spmd(lambda: dist.get_rank() * 10, 2, backend="gloo")

    assert run_spmd(program, 2) == [[0, 10]] * 2
    with pytest.raises(RankError, match=r"world_size is 3, but this process is one of 2"):
        run_spmd(lambda: run_spmd(group_size, 3, backend="gloo"), 2)


@pytest.mark.slow
def test_torchrun(write):
    script = write(
        HEAD
        + """
def program(x):
    total = torch.full((2,), float(dist.get_rank() + 1), requires_grad=True)
    total = total * 1
    with torch.no_grad():
        dist.all_reduce(total)
    return dist.get_rank(), x, total

for x in "ab":  # a second group after the first
    results = run_spmd(lambda: program(x), 2, backend="gloo")
    say(os.environ["RANK"], [(r, x, t.tolist(), t.requires_grad) for r, x, t in results])
    assert not dist.is_initialized()
try:
    run_spmd(program, 3, ("x",), backend="gloo")
except ValueError as error:
    say(error)
dist.init_process_group("gloo")
say("joined", len(run_spmd(program, 2, ("x",), backend="gloo")), dist.is_initialized())
dist.destroy_process_group()
"""
    )
    process = start(script, *TORCHRUN)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    lines = out.splitlines()
    for x in "ab":
        for rank in range(2):
            ranks = [(r, x, [3.0, 3.0], False) for r in range(2)]
            assert f"{rank} {ranks}" in lines
    assert out.count("world_size is 3, but this process is one of 2") == 2
    assert lines.count("joined 2 True") == 2


@pytest.mark.slow
@pytest.mark.parametrize("of_its_own", [False, True])
def test_torchrun_with_a_rank_that_fails(write, of_its_own):
    script = write(
        HEAD
        + f"""
if {of_its_own}:
    dist.init_process_group("gloo")
"""
        + """
def program(waits):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    if dist.get_rank() == 1:
        raise KeyError("missing")
    if waits:
        dist.barrier()
    return 1
def call(waits):
    try:
        run_spmd(program, 2, (waits,), backend="gloo")
    except RankError as error:
        say(waits, os.environ["RANK"], error.rank, error, type(error.__cause__).__name__)
call(False)
call(True)
"""
    )
    out, err = start(script, *TORCHRUN).communicate(timeout=120)
    for waits in (False, True):
        for rank in "01":
            line = f"{waits} {rank} 1 rank 1 of 2 failed: KeyError: 'missing' KeyError"
            assert line in out.splitlines(), err
