"""Each call of torch.distributed on virtual ranks and on gloo: the same in all that can be seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
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
)
from conformance_calls import CALLS, Case, calls, same
from conformance_docs import DOCUMENT, document
from conformance_wrong import HANGS, RAISES, TAKES
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


@pytest.mark.skipif(TORCH != (2, 13), reason="the document is that of torch 2.13")
def test_the_document_is_that_of_the_tables() -> None:
    assert DOCUMENT.read_text() == document(), "make it anew: python tests/conformance_docs.py"


def test_the_table_in_the_document() -> None:
    lines = document().splitlines()
    (rule,) = [i for i, line in enumerate(lines) if line.startswith("| --- |")]
    assert lines[rule - 1].startswith(
        "| operation | op | bool, uint8, int8, int32, int64 | int16 |"
    )
    assert {line.count("|") for line in lines if line.startswith("|")} == {7}
    (gather,) = [line for line in lines if line.startswith("| `gather` |")]
    assert gather == "| `gather` |  | both | virtual | both | virtual |"


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


@pytest.mark.parametrize("fn", RAISES, ids=lambda f: f.__name__)
def test_where_every_gloo_rank_raises_virtual_ranks_raise(
    gloo_pool: GlooPool, fn: Callable[[], None]
) -> None:
    assert all(isinstance(outcome, Raised) for outcome in gloo_pool.run(fn, 2))
    with pytest.raises(RankError):
        run_spmd(fn, 2)


@pytest.mark.parametrize(("fn", "reason"), TAKES, ids=lambda f: getattr(f, "__name__", ""))
def test_virtual_ranks_refuse_what_gloo_takes(
    gloo_pool: GlooPool, fn: Callable[[], None], reason: str
) -> None:
    assert gloo_pool.run(fn, 2) == [None, None], reason
    with pytest.raises(RankError):
        run_spmd(fn, 2)


@pytest.mark.slow
@pytest.mark.parametrize("fn", HANGS, ids=lambda f: f.__name__)
def test_gloo_hangs_where_virtual_ranks_raise(gloo_pool: GlooPool, fn: Callable[[], None]) -> None:
    with pytest.raises(RankError):
        run_spmd(fn, 2)
    try:
        outcomes = gloo_pool.run(fn, 2, limit=3)
    except GlooHangError:
        return
    assert "ProcessDied" in [outcome.type for outcome in outcomes if outcome is not None]
