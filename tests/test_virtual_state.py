"""What ranks share with the process they are in, and must not notice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import gauss
from random import random as from_random
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from kernelbench_dist.distributed_collectives.spmd import run_spmd
from kernelbench_dist.distributed_collectives.virtual import _random

RANKS = 4


@pytest.fixture(params=["words", "functions"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Python's state is copied as memory; where that cannot be, by its own functions."""
    if request.param == "functions":
        monkeypatch.setattr(_random, "_shared_words", None)
    else:
        assert _random._shared_words is not None
    return request.param


def draws_python() -> list[float]:
    """`gauss` keeps every second number back: an odd number of calls before each hand-over."""
    random.seed(dist.get_rank())
    drawn: list[float] = []
    for _ in range(5):
        drawn += [random.random(), from_random(), gauss(0, 1), random.randint(0, 10**6)]
        dist.barrier()
    return drawn


def test_python_random(way: str) -> None:
    found = run_spmd(draws_python, RANKS)
    for rank in range(RANKS):
        own = random.Random(rank)
        expected: list[float] = []
        for _ in range(5):
            expected += [own.random(), own.random(), own.gauss(0, 1), own.randint(0, 10**6)]
        assert found[rank] == expected


def test_python_random_starts_as_the_callers_and_leaves_it(way: str) -> None:
    def program() -> float:
        dist.barrier()
        return random.random() + random.gauss(0, 1)

    random.seed(7)
    random.gauss(0, 1)
    before = random.getstate()
    found = run_spmd(program, RANKS)
    assert random.getstate() == before
    assert found == [random.random() + random.gauss(0, 1)] * RANKS


def draws_numpy() -> list[float]:
    np.random.seed(dist.get_rank())
    drawn = []
    for _ in range(5):
        drawn += [np.random.rand(), np.random.randn(), int(np.random.randint(0, 10**6))]
        dist.barrier()
    return drawn


def test_numpy_random() -> None:
    found = run_spmd(draws_numpy, RANKS)
    for rank in range(RANKS):
        own = np.random.RandomState(rank)
        expected = []
        for _ in range(5):
            expected += [own.rand(), own.randn(), int(own.randint(0, 10**6))]
        assert found[rank] == expected


def test_numpy_state_is_read_and_set_as_ever() -> None:
    """A rank's state is whole to the program, also where it is another generator's."""

    def program() -> tuple[Any, bool]:
        rank = dist.get_rank()
        np.random.set_state(np.random.RandomState(10 + rank).get_state())
        dist.barrier()
        name, key, *_ = np.random.get_state()
        same = np.array_equal(key, np.random.RandomState(10 + rank).get_state()[1])
        if rank == 1:
            np.random.set_bit_generator(np.random.PCG64(5))
        first = np.random.randn()
        dist.barrier()
        return (first, np.random.randn()), name == "MT19937" and same

    found = run_spmd(program, RANKS)
    for rank in range(RANKS):
        own = np.random.RandomState(np.random.PCG64(5) if rank == 1 else 10 + rank)
        assert found[rank] == ((own.randn(), own.randn()), True)


@pytest.fixture
def numpys_generator() -> Iterator[None]:
    before = np.random.get_bit_generator()
    yield
    np.random.set_bit_generator(before)


@pytest.mark.usefixtures("numpys_generator")
@pytest.mark.parametrize("kind", [np.random.MT19937, np.random.PCG64])
def test_numpy_random_starts_as_the_callers_and_leaves_it(kind: Any) -> None:
    def program() -> tuple[float, float]:
        dist.barrier()
        return np.random.randn(), np.random.rand()

    generator = kind(3)
    np.random.set_bit_generator(generator)
    np.random.randn()  # of two that are drawn, one is left
    before = np.random.get_state(legacy=False)
    found = run_spmd(program, RANKS)
    assert np.random.get_bit_generator() is generator
    assert str(np.random.get_state(legacy=False)) == str(before)
    assert before["has_gauss"] == 1
    assert found == [(np.random.randn(), np.random.rand())] * RANKS


def test_numpy_imported_by_the_ranks() -> None:
    """As NumPy 2 does when it is first used. Each rank seeds it, and the caller's by none."""
    said = in_a_process("""
import torch.distributed as dist
from kernelbench_dist.distributed_collectives.spmd import run_spmd

def program():
    import numpy as np
    np.random.seed(dist.get_rank())
    dist.barrier()
    return float(np.random.rand())

found = run_spmd(program, 3)
import numpy as np
assert found == [float(np.random.RandomState(rank).rand()) for rank in range(3)], found
print(float(np.random.rand()) in [float(np.random.RandomState(r).rand(2)[1]) for r in range(3)])
""")
    assert said == "False"


def in_a_process(code: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    return done.stdout.strip()


@torch.compile(backend="eager", fullgraph=True)
def place(x: torch.Tensor) -> torch.Tensor:
    return x + int(os.environ["RANK"]) + 10 * (dist.get_rank() if dist.is_initialized() else 9)


@pytest.mark.slow
def test_compiled_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """More ranks than Dynamo compiles a function for in one process (8); the caller's stays."""
    monkeypatch.setenv("RANK", "5")
    x = torch.zeros(1)
    assert place(x) == 95
    for ranks in (12, 3):
        assert [y.item() for y in run_spmd(place, ranks, (x,))] == [11.0 * r for r in range(ranks)]
    assert place(x) == 95
    monkeypatch.setenv("RANK", "6")  # has it compiled anew, for which nothing may be left
    assert place(x) == 96


@torch.compile(backend="eager", fullgraph=True)
def size_of(x: torch.Tensor, group: Any) -> torch.Tensor:
    return x * group.size()


@pytest.mark.slow
def test_what_a_run_compiled_ends_with_it() -> None:
    """Dynamo does not look at which group it is given; the next run's are others."""

    def program(size: int) -> float | None:
        group = dist.new_group(list(range(size)))
        if dist.get_rank() >= size:
            return None
        return float(size_of(torch.ones(1), group).item())

    for size in (2, 3, 1):
        assert run_spmd(program, 3, (size,)) == [float(size)] * size + [None] * (3 - size)


@pytest.mark.slow
def test_a_rank_that_is_the_first_to_compile() -> None:
    """It compiles before any other has run; afterwards nobody finds what it compiled."""
    said = in_a_process("""
import functools, torch, torch.distributed as dist
from kernelbench_dist.distributed_collectives.spmd import run_spmd

@functools.cache
def compiled():
    return torch.compile(lambda x: x + dist.get_rank(), backend="eager")

def program():
    return compiled()(torch.zeros(1)).item() if dist.get_rank() == 0 else None

print(run_spmd(program, 2))
try:
    print(compiled()(torch.zeros(1)).item())
except Exception:
    print("no group")
""")
    assert said == "[0.0, None]\nno group"


def test_ranks_that_compile_nothing_do_not_import_dynamo() -> None:
    assert (
        in_a_process("""
import sys, torch, torch.distributed as dist
from kernelbench_dist.distributed_collectives.spmd import run_spmd
run_spmd(lambda: dist.all_reduce(torch.ones(2)), 2)
print("torch._dynamo" in sys.modules)
""")
        == "False"
    )


@pytest.mark.slow
def test_fake_tensors_in_one_run_after_the_other() -> None:
    """torch 2.11 dies of it where no GPU is: threads that used fake tensors first have ended."""
    said = in_a_process("""
import spmd_programs_compiled as compiled, spmd_programs_sharded as sharded
from kernelbench_dist.distributed_collectives.spmd import run_spmd
for _ in range(2):
    for program in (sharded.fsdp2, sharded.tensor_parallel, compiled.compile_aot_eager):
        run_spmd(program, 2)
print("alive")
""")
    assert said == "alive"
