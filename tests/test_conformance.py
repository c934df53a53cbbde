"""Each call of torch.distributed on virtual ranks and on gloo: the same in all that can be seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conformance import (
    BACKENDS,
    DIFFERENCES,
    DTYPES,
    GAPS,
    OPERATIONS,
    TORCH,
    Difference,
    Gap,
    cells,
    comparable,
    gap,
    lacks,
    support_table,
)
from conformance_calls import CALLS, Case, calls, same
from gloo_pool import GlooHangError, GlooPool, Raised, gloo_pool_fixture  # noqa: F401
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kernelbench_dist.distributed_collectives._errors import RankError
from kernelbench_dist.distributed_collectives.spmd import SpmdOptions, run_spmd

# Some of the calls have newer names, which torch 2.11 does not know.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

Seen = dict[str, Any]


def virtual(
    size: int, cases: Sequence[Case], device: str = "cpu", mode: Any = "strict"
) -> list[list[Seen]]:
    options = SpmdOptions(order="gloo_ring", mode=mode)
    return run_spmd(calls, size, (cases, device), options=options)


def compare(size: int, cases: Sequence[Case], ours: list[list[Seen]], others: list[Any]) -> None:
    for i, case in enumerate(cases):
        for rank in range(size):
            assert not isinstance(others[rank], Raised), others[rank]
            a, b = comparable(case, ours[rank][i]), comparable(case, others[rank][i])
            for key in {**a, **b}:
                assert key in a, (case, rank, key, b)
                assert key in b, (case, rank, key, a)
                assert same(a[key], b[key]), (case, f"rank {rank}", key, a[key], b[key])


@pytest.mark.parametrize("name", CALLS)
def test_what_gloo_has_is_the_same_on_virtual_ranks(gloo_pool: GlooPool, name: str) -> None:
    cases = [case for case in cells(name) if not lacks("gloo", case)]
    others = gloo_pool.values(calls, 3, cases)
    assert not any("raised" in seen for row in others for seen in row)
    compare(3, cases, virtual(3, cases), others)


@pytest.mark.parametrize("name", CALLS)
def test_what_the_table_says_gloo_lacks_raises_on_every_rank(
    gloo_pool: GlooPool, name: str
) -> None:
    cases = [case for case in cells(name) if lacks("gloo", case)]
    for row in gloo_pool.values(calls, 2, cases):
        for case, seen in zip(cases, row, strict=True):
            assert "raised" in seen, (case, seen)


@pytest.mark.parametrize("name", CALLS)
def test_virtual_ranks_have_what_the_table_says_and_raise_otherwise(name: str) -> None:
    cases = list(cells(name))
    for row in virtual(2, cases):
        for case, seen in zip(cases, row, strict=True):
            assert ("raised" in seen) == lacks("virtual", case), (case, seen)


# There only the rank that receives raises, and the other waits: by hand elsewhere.
@pytest.mark.parametrize("name", [name for name in CALLS if name != "recv_any_source"])
def test_portable_refuses_what_gloo_or_nccl_lacks_and_nothing_else(name: str) -> None:
    cases = list(cells(name))
    for row in virtual(2, cases, mode="portable"):
        for case, seen in zip(cases, row, strict=True):
            refused = any(lacks(backend, case) for backend in ("virtual", "gloo", "nccl"))
            assert ("raised" in seen) == refused, (case, seen)


@pytest.mark.parametrize("one", [g for g in GAPS if g.empty], ids=lambda g: g.names[0])
def test_what_gloo_lacks_for_empty_tensors_raises(gloo_pool: GlooPool, one: Gap) -> None:
    for name in one.names:
        case = Case(name, shape=(0,))
        assert all("raised" in seen for (seen,) in gloo_pool.values(calls, 2, [case]))
        assert not any("raised" in seen for (seen,) in virtual(2, [case]))


@pytest.mark.parametrize("one", DIFFERENCES, ids=lambda d: f"{d.names[0]} {d.keys[0]}")
def test_what_is_said_to_differ_does(gloo_pool: GlooPool, one: Difference) -> None:
    size = 2
    ours, others = virtual(size, [one.example]), gloo_pool.values(calls, size, [one.example])
    for key in one.keys:
        pairs = [(ours[r][0].get(key), others[r][0].get(key)) for r in range(size)]
        assert any(not same(a, b) for a, b in pairs), (one, pairs)


def test_each_gap_is_in_the_table_and_has_a_reason() -> None:
    backends = (*BACKENDS, "nccl")
    found = [gap(b, name, op, d) for b in backends for name, op in OPERATIONS for d in DTYPES]
    assert all(one.empty or any(one is f for f in found) for one in GAPS)
    assert all(one.reason for one in (*GAPS, *DIFFERENCES))
    for one in (*GAPS, *DIFFERENCES):
        assert set(one.names) <= set(CALLS)


def test_the_table_as_text() -> None:
    header, rule, *rows = support_table().splitlines()
    assert len({line.count("|") for line in (header, rule, *rows)}) == 1
    assert header.startswith("| operation | op | bool | uint8 |")
    (gather,) = [row for row in rows if row.startswith("| `gather` |")]
    assert gather == "| `gather` |  | both | both | both | virtual" + 6 * " | both" + " | virtual |"


@pytest.mark.parametrize("how", ["work", "future"])
def test_asynchronous_calls_are_the_same_too(gloo_pool: GlooPool, how: str) -> None:
    cases = [
        Case(name, op, torch.float32, (2, 3), root=1, how=how)
        for name, op in OPERATIONS
        if op in ("", "sum", "avg") and not gap("gloo", name, op, torch.float32)
    ]
    compare(2, cases, virtual(2, cases), gloo_pool.values(calls, 2, cases))


_POSSIBLE = {
    name: found for name in CALLS if (found := [c for c in cells(name) if not lacks("gloo", c)])
}


@st.composite
def drawn(draw: st.DrawFn) -> tuple[int, list[Case]]:
    size = draw(st.integers(1, 8))
    subgroups = st.sets(st.integers(0, size - 1), min_size=1).map(lambda s: tuple(sorted(s)))
    shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
    shapes |= st.sampled_from([(), (0,), (1,), (257,), (3, 0, 2), (5, 7)])
    # First the name: most of the table is reductions.
    names = st.sampled_from(list(_POSSIBLE))
    cases = []
    for _ in range(draw(st.integers(1, 8))):
        case = replace(
            draw(st.sampled_from(_POSSIBLE[draw(names)])),
            shape=draw(shapes),
            ranks=draw(st.none() | subgroups),
            root=draw(st.integers(0, 7)),
            how=draw(st.sampled_from(["now", "work", "future"])),
            seed=draw(st.integers(0, 1000)),
        )
        if not lacks("gloo", case):
            cases.append(case)
    return size, cases


_common = {"suppress_health_check": list(HealthCheck), "deadline": None}


@settings(max_examples=40, **_common)
@given(program=drawn())
def test_drawn_calls_are_the_same(gloo_pool: GlooPool, program: tuple[int, list[Case]]) -> None:
    size, cases = program
    compare(size, cases, virtual(size, cases), gloo_pool.values(calls, size, cases))


@pytest.mark.slow
@settings(max_examples=600, phases=[Phase.generate, Phase.shrink], **_common)
@given(program=drawn())
def test_many_drawn_calls_are_the_same(
    gloo_pool: GlooPool, program: tuple[int, list[Case]]
) -> None:
    size, cases = program
    compare(size, cases, virtual(size, cases), gloo_pool.values(calls, size, cases))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_cuda_tensors_have_the_bits_of_the_cpu(name: str) -> None:
    cases = [case for case in cells(name) if not lacks("virtual", case)]
    compare(4, cases, virtual(4, cases, "cuda"), virtual(4, cases))


# Wrong calls. Each raises within one rank, or ends the run.


def _ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape or (4,))


def _size() -> int:
    return dist.get_world_size()


def too_few_outputs() -> None:
    dist.all_gather([_ones()] * (_size() - 1), _ones())


def too_many_inputs() -> None:
    dist.reduce_scatter(_ones(), [_ones()] * (_size() + 1))


def output_of_another_dtype() -> None:
    dist.all_gather([_ones().double() for _ in range(_size())], _ones())


def gathered_tensor_too_small() -> None:
    dist.all_gather_into_tensor(_ones(4), _ones(4))


def scattered_tensor_too_small() -> None:
    dist.reduce_scatter_tensor(_ones(4), _ones(4))


def gathered_tensor_of_another_dtype() -> None:
    dist.all_gather_into_tensor(_ones(4 * _size()).double(), _ones(4))


def splits_of_another_sum() -> None:
    dist.all_to_all_single(_ones(4), _ones(4), [1] * _size(), [1] * _size())


def splits_of_another_number() -> None:
    dist.all_to_all_single(_ones(4), _ones(4), [4], [4])


def all_to_all_with_too_few() -> None:
    dist.all_to_all([_ones()], [_ones()])


def root_out_of_range() -> None:
    dist.broadcast(_ones(), src=_size())


def destination_out_of_range() -> None:
    dist.reduce(_ones(), dst=_size())


def send_to_itself() -> None:
    dist.send(_ones(), dist.get_rank())


def receive_from_itself() -> None:
    dist.recv(_ones(), dist.get_rank())


def no_tensor() -> None:
    dist.all_reduce([1.0, 2.0])  # type: ignore[arg-type]


def group_of_a_rank_twice() -> None:
    dist.new_group([0, 0])


def group_of_a_rank_that_is_not() -> None:
    dist.new_group([0, _size()])


def coalesced_dtypes() -> None:
    dist.all_reduce_coalesced([_ones(), _ones().double()])


def strided_output() -> None:
    dist.all_gather([_ones(4, 2)[:, 0] for _ in range(_size())], _ones(4))


def strided_send() -> None:
    x = _ones(4, 2)[:, 0]
    dist.recv(x, 1) if dist.get_rank() == 0 else dist.send(x, 0)


def strided_broadcast() -> None:
    dist.broadcast(_ones(4, 2)[:, 0], 0)


def strided_reduction() -> None:
    dist.all_reduce(_ones(4, 2)[:, 0])


def expanded_reduction() -> None:
    dist.all_reduce(_ones(1).expand(4))


def sparse_reduction() -> None:
    dist.all_reduce(_ones().to_sparse())


def all_to_all_of_one_row_too_many() -> None:
    dist.all_to_all_single(_ones(2 * _size() + 1), _ones(2 * _size() + 1))


def all_to_all_in_place() -> None:
    x = _ones(2 * _size())
    dist.all_to_all_single(x, x)


def other_reduce_op() -> None:
    dist.all_reduce(_ones(), [dist.ReduceOp.SUM, dist.ReduceOp.MAX][dist.get_rank() % 2])


def other_shape_of_equal_count() -> None:
    dist.all_reduce(_ones(4) if dist.get_rank() == 0 else _ones(2, 2))


def other_dtype_of_equal_size() -> None:
    dist.all_reduce(_ones(4) if dist.get_rank() == 0 else _ones(4).int())


def other_source() -> None:
    dist.broadcast(_ones(), dist.get_rank())


def receive_of_another_dtype() -> None:
    if dist.get_rank() == 0:
        dist.send(_ones(), 1)
    else:
        dist.recv(_ones().int(), 0)


def receive_of_too_few() -> None:
    if dist.get_rank() == 0:
        dist.send(_ones(4), 1)
    else:
        dist.recv(_ones(2), 0)


def send_without_receive() -> None:
    dist.send(_ones(), 1 - dist.get_rank())


# gloo raises on every rank, and so does each virtual rank.
_RAISES: list[Callable[[], None]] = [
    too_few_outputs,
    too_many_inputs,
    output_of_another_dtype,
    gathered_tensor_too_small,
    scattered_tensor_too_small,
    gathered_tensor_of_another_dtype,
    splits_of_another_sum,
    splits_of_another_number,
    all_to_all_with_too_few,
    root_out_of_range,
    destination_out_of_range,
    send_to_itself,
    receive_from_itself,
    no_tensor,
    # Earlier, gloo waits for ever.
    *([group_of_a_rank_twice] if TORCH >= (2, 13) else []),
    group_of_a_rank_that_is_not,
    coalesced_dtypes,
    strided_send,
    *([all_to_all_of_one_row_too_many] if TORCH >= (2, 14) else []),
]

# gloo takes these: the reason why virtual ranks do not.
_TAKES: list[tuple[Callable[[], None], str]] = [
    (strided_output, "gloo gets it right, but virtual ranks take contiguous tensors alone"),
    (strided_broadcast, "gloo moves the memory as it lies, which is that of other elements"),
    (strided_reduction, "gloo reduces the memory as it lies, which is that of other elements"),
    (expanded_reduction, "gloo writes behind the one element that there is"),
    (sparse_reduction, "virtual ranks have no sparse tensors"),
    (all_to_all_in_place, "gloo overwrites what it has yet to send"),
    (other_reduce_op, "each rank gets another result"),
    (other_shape_of_equal_count, "gloo counts elements only"),
    (other_dtype_of_equal_size, "gloo counts bytes only, and adds floats to integers"),
    (receive_of_another_dtype, "gloo counts bytes only"),
]
if TORCH < (2, 14):
    _TAKES.append((all_to_all_of_one_row_too_many, "gloo cuts within a row"))

# gloo waits for ever, or the process ends.
_HANGS: list[Callable[[], None]] = [other_source, receive_of_too_few, send_without_receive]


@pytest.mark.parametrize("fn", _RAISES, ids=lambda f: f.__name__)
def test_where_every_gloo_rank_raises_virtual_ranks_raise(
    gloo_pool: GlooPool, fn: Callable[[], None]
) -> None:
    assert all(isinstance(outcome, Raised) for outcome in gloo_pool.run(fn, 2))
    with pytest.raises(RankError):
        run_spmd(fn, 2)


@pytest.mark.parametrize(("fn", "reason"), _TAKES, ids=lambda f: getattr(f, "__name__", ""))
def test_virtual_ranks_refuse_what_gloo_takes(
    gloo_pool: GlooPool, fn: Callable[[], None], reason: str
) -> None:
    assert gloo_pool.run(fn, 2) == [None, None], reason
    with pytest.raises(RankError):
        run_spmd(fn, 2)


@pytest.mark.slow
@pytest.mark.parametrize("fn", _HANGS, ids=lambda f: f.__name__)
def test_gloo_hangs_where_virtual_ranks_raise(gloo_pool: GlooPool, fn: Callable[[], None]) -> None:
    with pytest.raises(RankError):
        run_spmd(fn, 2)
    try:
        outcomes = gloo_pool.run(fn, 2, limit=3)
    except GlooHangError:
        return
    assert "ProcessDied" in [outcome.type for outcome in outcomes if outcome is not None]
