"""rank_faults draws what it says, finds what depends on the order, and shrinks to what matters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, find, given, settings

from kernelbench_dist.distributed_collectives import RankError, SpmdOptions, run_spmd
from kernelbench_dist.distributed_collectives.virtual import Faults, InjectedError
from kernelbench_dist.testing import rank_faults

FEW = settings(max_examples=30, deadline=None, derandomize=True, database=None)


def collect(strategy: Any) -> list[Faults]:
    drawn: list[Faults] = []

    @settings(max_examples=200, derandomize=True, phases=[Phase.generate], database=None)
    @given(strategy)
    def draw(faults: Faults) -> None:
        faults.check(3)
        drawn.append(faults)

    draw()
    return drawn


def shrunk(program: Any, world_size: int, usual: Any, **drawn: Any) -> Faults:
    """The simplest faults under which the program does not return what it usually does."""

    def differs(faults: Faults) -> bool:
        try:
            return run_spmd(program, world_size, options=SpmdOptions(faults=faults)) != usual
        except RankError:
            return True

    search = settings(
        max_examples=500, derandomize=True, database=None, suppress_health_check=[*HealthCheck]
    )
    return find(rank_faults(world_size, **drawn), differs, settings=search)


def test_orders_and_delays_of_every_rank_but_no_failure() -> None:
    drawn = collect(rank_faults(3, max_delay=2))
    assert {faults.seed is None for faults in drawn} == {True, False}
    assert len({faults.seed for faults in drawn}) > 20
    assert {d for faults in drawn for d in faults.delay.items()} == {
        (rank, turns) for rank in range(3) for turns in (1, 2)
    }
    assert all(not faults.fail for faults in drawn)
    assert Faults() in drawn


def test_one_failure_on_request() -> None:
    drawn = collect(rank_faults(3, orders=False, max_delay=0, fail=True, max_call=2))
    assert {(f.seed, *f.delay.items()) for f in drawn} == {(None,)}
    assert {len(f.fail) for f in drawn} == {1}
    assert {call for f in drawn for call in f.fail.items()} == {
        (rank, call) for rank in range(3) for call in (1, 2)
    }


def test_it_shrinks_to_no_faults() -> None:
    assert find(rank_faults(4), lambda faults: True) == Faults()
    assert find(rank_faults(4, fail=True), lambda faults: True) == Faults(fail={0: 1})
    assert find(rank_faults(4), lambda faults: 2 in faults.delay) == Faults(delay={2: 1})
    assert find(rank_faults(4), lambda faults: faults.seed is not None) == Faults(seed=0)


def test_a_delay_finds_who_sends_first() -> None:
    def program() -> list[int]:
        if dist.get_rank() > 0:
            dist.send(torch.zeros(1), 0)
            return []
        return [dist.recv(torch.zeros(1)), dist.recv(torch.zeros(1))]

    # Once rank 0 is preferred to rank 1, and once rank 2.
    assert shrunk(program, 3, [[1, 2], [], []], orders=False) == Faults(delay={1: 2})


def test_an_order_finds_a_result_that_is_read_before_it_is_there() -> None:
    def program() -> float:
        x = torch.tensor(float(dist.get_rank()))
        work = dist.all_reduce(x, async_op=True)
        seen = x.item()
        work.wait()
        return seen

    found = shrunk(program, 2, [0.0, 1.0], max_delay=0)
    assert found.seed is not None
    assert not found.delay


@FEW
@given(rank_faults(3, fail=True, max_call=5))
def test_a_failure_is_raised_for_its_rank_or_not_reached(faults: Faults) -> None:
    def program() -> int:
        for _ in range(3):
            dist.barrier()
        return dist.get_rank()

    ((rank, call),) = faults.fail.items()
    if call > 3:
        assert run_spmd(program, 3, options=SpmdOptions(faults=faults)) == [0, 1, 2]
        return
    with pytest.raises(RankError, match=f"rank {rank} of 3 failed") as caught:
        run_spmd(program, 3, options=SpmdOptions(faults=faults))
    assert caught.value.rank == rank
    assert isinstance(caught.value.__cause__, InjectedError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"world_size": 0}, "world_size is 0; 1 or more"),
        ({"world_size": 2, "max_delay": -1}, "max_delay is -1; 0 or more"),
        ({"world_size": 2, "max_call": 0}, "max_call is 0; 1 or more"),
    ],
)
def test_wrong_arguments(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rank_faults(**arguments)
