"""Differentiable collectives for programs, against the stacked ones and values written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import functional_cases as cases
import functional_programs as programs
import pytest
import torch
import torch.distributed as dist
from functional_cases import R
from gloo_pool import GlooPool

from kernelbench_dist.distributed_collectives import MismatchError, RankError, functional, run_spmd

Run = Callable[..., list[Any]]


@pytest.fixture(params=["virtual", pytest.param("gloo", marks=pytest.mark.slow)])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a program of functional_programs by name on four ranks."""
    if request.param == "virtual":
        return lambda name: run_spmd(programs.run_program, R, (name,))
    pool: GlooPool = request.getfixturevalue("gloo_pool")
    return lambda name: pool.values(programs.run_program, R, name)


def check(name: str, got: list[list[torch.Tensor]]) -> None:
    """Results, gradients and second gradients."""
    for r, (row, expected) in enumerate(zip(got, cases.expected(name), strict=True)):
        for i, (y, z) in enumerate(zip(row, expected, strict=True)):
            assert y.shape == z.shape
            assert torch.allclose(y, z, rtol=1e-12, atol=1e-12), (name, r, i, y, z)


@pytest.mark.parametrize("name", cases.BY_NAME)
def test_results_and_gradients_are_those_of_the_stacked_collective(name):
    check(name, run_spmd(cases.run_case, R, (name,)))


@pytest.mark.slow
def test_results_and_gradients_on_gloo_are_those_of_the_stacked_collectives(gloo_pool):
    got = gloo_pool.values(cases.run_cases, R)
    for name in cases.BY_NAME:
        check(name, [row[name] for row in got])


def test_the_gradient_of_all_gather_counts_every_ranks_loss(run):
    assert run("gather_weighted") == [[10.0]] * R  # 1 + 2 + 3 + 4


def test_the_gradient_of_a_sum_is_the_sum_of_the_gradients(run):
    assert run("reduce_weighted") == [[[10.0, 4.0], [10.0, 1.0], [10.0, 1111.0]]] * R


def test_a_loss_that_is_the_same_on_all_ranks_counts_once(run):
    # y = 10, 2.5, 24, 4; dy^2/dx = 2y, 2y / 4, 2y * 24 / x, 2y on rank 3.
    assert run("reduce_same") == [
        [[20.0], [1.25], [48.0 * 24 / (r + 1)], [8.0 * (r == 3)]] for r in range(R)
    ]


def test_all_gather_broadcast_and_replicate_with_one_loss(run):
    # The broadcast: 2 * 3 on rank 2. The weight w = 2: d(10 w)^2/dw = 200 w.
    assert run("move_same") == [[[10.0**r], [6.0 * (r == 2)], [400.0]] for r in range(R)]


def test_one_loss_twice_differentiated(run):
    # all_reduce: y = 10 and the gradients 3 y^2 on 4 ranks: d(36 y^4)/dx = 144 y^3. all_gather: the
    # gradient is 3 x^2: 36 x^3. broadcast from rank 1: y = 2 and its gradient 3 y^2, 0 elsewhere.
    # The weight w = 2: its gradient is 30 w^2 (1 + 2 + 3 + 4 cubes): d(900 w^4)/dw = 3600 w^3.
    assert run("same_twice") == [
        [[144000.0], [36.0 * (r + 1) ** 3], [288.0 * (r == 1)], [28800.0]] for r in range(R)
    ]


def test_all_to_all_with_uneven_splits_in_a_group(run):
    *rows, outside = run("uneven_to_all")
    assert [row[0] for row in rows] == [
        [0, 1, 2, 10, 11, 20],
        [3, 4, 12, 13, 21, 22],
        [5, 14, 15, 23, 24, 25],
    ]
    assert [row[1] for row in rows] == [[10.0 * r + i for i in range(6)] for r in range(3)]
    assert outside.startswith("ValueError: all_to_all: this rank is not in the group")


def test_scalars_are_gathered_with_a_dim_and_refused_without(run):
    for gathered, error in run("scalars"):
        assert gathered == [123, 234, 345, 456]
        assert error.startswith("ValueError: all_gather: x is a scalar")


def test_the_other_ranks_parts_have_gradients(run):
    assert run("part_of_gathered") == [[True, [1.0 * (r == 2)] * 2] * 2 for r in range(R)]


def test_ranks_are_those_of_the_group(run):
    got = run("subgroup")
    assert got[0] == [[2], [0], [], [2], [2], [2]]
    assert got[2] == [[2], [2], [0, 2], [12], [0], [0]]
    assert got[1] == [[3], [0], [], [3], [3], [3]]
    assert got[3] == [[3], [4], [1, 3], [13], [0], [1]]


def test_dtypes(run):
    got, expected = run("dtypes"), programs.dtypes_expected()
    for r, results in enumerate(got):
        for dtype, rows in results.items():
            for y, z in zip(rows, expected[dtype][r], strict=True):
                assert y.dtype == z.dtype
                assert y.tolist() == z.tolist(), (dtype, r)


def test_sums_of_narrow_floats_are_rounded_once_and_nan_wins(run):
    for reduced, scattered, average, high, low in run("rounding"):
        # 1.01171875 lies between 1.0078125 and 1.015625, and the latter is even.
        assert (reduced, scattered) == (1.015625, 1.015625)
        assert average == 60000
        assert (high[0], low[0]) == (3, 0)
        assert high[1] != high[1]
        assert low[1] != low[1]


def test_all_ranks_take_part_in_backward_if_one_does(run):
    got = run("one_needs_a_gradient")
    assert got[1] == [
        [10.0] * 4,
        [10.0] * 4,
        [10.0] * 4,
        [3.0] * 4,
        [1.0, 2.0, 3.0, 4.0],
        [3.0] * 4,
        [7.0] * 4,
    ]
    assert [got[0], got[2], got[3]] == [[None] * 7] * 3


def test_results_share_no_memory_with_the_input(run):
    assert run("own_memory") == [True] * R


def test_scan_of_whole_numbers():
    def program():
        x = torch.tensor([dist.get_rank() + 1, 7 - dist.get_rank()])
        return [functional.scan(x, op, e).tolist() for op in ("sum", "min") for e in (False, True)]

    most = torch.iinfo(torch.int64).max
    assert run_spmd(program, 3) == [
        [[1, 7], [0, 0], [1, 7], [most, most]],
        [[3, 13], [1, 7], [1, 6], [1, 7]],
        [[6, 18], [3, 13], [1, 5], [1, 6]],
    ]


def test_without_gradients(run):
    assert run("without_gradients") == [[False, True]] * R


def test_ranks_that_disagree_all_raise_the_same(run):
    got = run("disagreements")
    assert got == [got[0]] * R
    for error, expected in zip(
        got[0],
        (
            "ValueError: all_reduce: rank 2 has op='max' and rank 0 has 'sum'",
            "ValueError: all_reduce: rank 2 has shape (3,) and rank 0 has (4,)",
            "TypeError: all_reduce: rank 2 has dtype torch.float64 and rank 0 has torch.float32",
            "ValueError: broadcast: rank 2 has src=1 and rank 0 has 0",
            "ValueError: permute: rank 2 has pairs=[[0, 1]] and rank 0 has [[1, 0]]",
            "ValueError: scan: rank 2 has exclusive=True and rank 0 has False",
            "ValueError: all_reduce: rank 2 calls shift and rank 0 all_reduce; all ranks must",
            "ValueError: all_gather: rank 2 has shape (0,) and rank 0 has (2, 2)",
            "ValueError: all_to_all: output_splits=[2, 1, 1, 0], but the ranks' input_splits give",
            "ValueError: all_reduce: rank 2 calls it without gradients",
        ),
        strict=True,
    ):
        assert expected in error


X = torch.ones(4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: functional.all_reduce([X]), "TypeError: all_reduce: x must be a tensor, got list"),
        (lambda: functional.all_reduce(X, "mean"), "ValueError: all_reduce: op 'mean' is not one"),
        (lambda: functional.all_reduce(X, loss="mean"), "ValueError: all_reduce: loss='mean'; it"),
        (lambda: functional.all_reduce(X.int(), "avg"), "TypeError: all_reduce: op 'avg' is not"),
        (lambda: functional.reduce(X, 2), "ValueError: reduce: dst=2 is not a rank; it takes 0 to"),
        (lambda: functional.broadcast(X, "0"), "TypeError: broadcast: src must be an int, got '0'"),
        (lambda: functional.scan(X, "avg"), "ValueError: scan: op 'avg' is not one of sum, prod"),
        (lambda: functional.scan(X, exclusive=1), "TypeError: scan: exclusive must be a bool, got"),
        (lambda: functional.all_gather(X, 1), "ValueError: all_gather: dim=1 is out of range for"),
        (lambda: functional.scatter(None), "TypeError: scatter: x must be a tensor, got None"),
        (
            lambda: functional.scatter(X, 1, alike=True, dim=-2),
            "ValueError: scatter: dim=-2 is out",
        ),
        (
            lambda: functional.reduce_scatter(X, sizes=[1, 2]),
            "ValueError: reduce_scatter: sizes=[1, 2] sums to 3, but dim 0",
        ),
        (
            lambda: functional.all_to_all(X[:3]),
            "cannot be cut into 2 equal parts; give input_splits, 2 ints that sum to it",
        ),
        (
            lambda: functional.all_to_all(X, input_splits=[1, 3], alike=True),
            "ValueError: all_to_all: output_splits is None; with alike=True and input_splits it",
        ),
        (
            lambda: functional.all_to_all(X, output_splits=[1, -1]),
            "ValueError: all_to_all: output_splits[1]=-1; it takes at least 0",
        ),
        (
            lambda: functional.permute(X, [(0, 1), (0, 0)]),
            "ValueError: permute: rank 0 is a source twice; a rank sends at most once",
        ),
        (lambda: functional.shift(X, 1.0), "TypeError: shift: by must be an int, got 1.0 (float)"),
    ],
)
def test_what_a_rank_knows_alone_it_raises_before_it_communicates(call, message):
    def program():
        return programs.error_of(call) if dist.get_rank() == 0 else ""

    assert message in run_spmd(program, 2)[0]  # the other rank does not call it


def test_alike_exchanges_nothing():
    def program():
        functional.all_reduce(torch.ones(1 + dist.get_rank()), alike=True)

    with pytest.raises(MismatchError, match=r"differ in shape: \(1,\) and \(2,\)"):
        run_spmd(program, 2)


def test_many_ranks_and_long_arguments():
    pairs = [(r, 63 - r) for r in range(64)]

    def program():
        x = torch.tensor([float(dist.get_rank())], requires_grad=True)
        y = functional.permute(x, pairs)
        (y * dist.get_rank()).sum().backward()
        return y.item(), x.grad.item()

    assert run_spmd(program, 64) == [(63.0 - r, 63.0 - r) for r in range(64)]


def test_a_rank_that_leaves_a_result_out_of_its_loss_is_found():
    def program():
        x = torch.ones(1, requires_grad=True)
        y = functional.all_reduce(x)
        (y if dist.get_rank() else x).sum().backward()

    with pytest.raises(RankError, match="all_reduce"):
        run_spmd(program, 2)
