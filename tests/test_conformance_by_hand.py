"""Virtual ranks against values written by hand: what gloo lacks or gets wrong, and all dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conformance import COMPLEX, DTYPES, FLOATS, OPERATIONS, gap
from gloo_pool import GlooPool, gloo_pool_fixture  # noqa: F401
from torch import Tensor

from kernelbench_dist.distributed_collectives.spmd import SpmdOptions, run_spmd

# Some of the calls have newer names, which torch 2.11 does not know.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

ORDERS = ["rank", "gloo_ring"]

# What two ranks give; the zeros and ones make bools differ too.
OWN = [[1, 0], [3, 2]]
ROWS = [[[1, 0], [0, 5]], [[0, 2], [4, 0]]]  # two parts a rank

# What each rank has afterwards. name: the key in CALLS of what this is.
MOVES: dict[str, list[Any]] = {
    "broadcast": [[[3, 2]], [[3, 2]]],
    "all_gather": [[[1, 0], [3, 2]]] * 2,
    "all_gather_uneven": [[[1], [3, 2]]] * 2,
    "all_gather_coalesced": [[[1, 0], [1], [3, 2], [3]]] * 2,
    "all_gather_into_tensor": [[[1, 0, 3, 2]]] * 2,
    "all_gather_into_tensor_stacked": [[[[1, 0], [3, 2]]]] * 2,
    "all_gather_into_tensor_managed": [[[1, 0, 3, 2], [1, 3]]] * 2,
    "gather": [[], [[1, 0], [3, 2]]],
    "scatter": [[[0, 2]], [[4, 0]]],
    "all_to_all_single": [[[1, 0, 0, 2]], [[0, 5, 4, 0]]],
    "all_to_all_single_splits": [[[1, 3, 2]], [[0]]],
    "all_to_all": [[[1, 0], [0, 2]], [[0, 5], [4, 0]]],
    "all_to_all_uneven": [[[1], [3, 2]], [[0], []]],
}

# The result over ranks of OWN, and of the two parts of ROWS. Products of floats, and averages, are
# numbers of each type.
SUMS = {
    "sum": ([4, 2], [[1, 2], [4, 5]]),
    "product": ([3, 0], [[0, 0], [0, 0]]),
    "min": ([1, 0], [[0, 0], [0, 0]]),
    "max": ([3, 2], [[1, 2], [4, 5]]),
    "band": ([1, 0], [[0, 0], [0, 0]]),
    "bor": ([3, 2], [[1, 2], [4, 5]]),
    "bxor": ([2, 2], [[1, 2], [4, 5]]),
    "avg": ([2, 1], [[0.5, 1], [2, 2.5]]),
    "premul_sum": ([12, 6], [[3, 6], [12, 15]]),  # the factor is 3
}
REDUCTIONS = (
    "all_reduce", "all_reduce_coalesced", "all_reduce_managed", "reduce", "reduce_scatter",
    "reduce_scatter_uneven", "reduce_scatter_tensor", "reduce_scatter_tensor_stacked",
    "reduce_scatter_tensor_managed",
)  # fmt: skip


def moved(name: str, dtype: torch.dtype) -> list[Tensor]:
    rank = dist.get_rank()

    def t(values: Any) -> Tensor:
        return torch.tensor(values).to(dtype)

    def e(*shape: int) -> Tensor:
        return torch.full(shape, 9.0).to(dtype)

    x, rows = t(OWN[rank]), [t(row) for row in ROWS[rank]]
    uneven = t(OWN[rank][: rank + 1])
    # Rank 0 sends a row to each, rank 1 two to rank 0.
    sent, received = [[1, 1], [2, 0]][rank], [[1, 2], [1, 0]][rank]
    if name == "broadcast":
        dist.broadcast(x, 1)
        return [x]
    if name == "all_gather":
        dist.all_gather(outputs := [e(2), e(2)], x)
    elif name == "all_gather_uneven":
        dist.all_gather(outputs := [e(1), e(2)], uneven)
    elif name == "all_gather_coalesced":
        lists = [[e(2), e(1)], [e(2), e(1)]]
        dist.all_gather_coalesced(lists, [x, x[:1].clone()])
        outputs = lists[0] + lists[1]
    elif name == "all_gather_into_tensor":
        dist.all_gather_into_tensor((outputs := [e(4)])[0], x)
    elif name == "all_gather_into_tensor_stacked":
        dist.all_gather_into_tensor((outputs := [e(2, 2)])[0], x)
    elif name == "all_gather_into_tensor_managed":
        outputs = [e(4), e(2)]
        with dist._coalescing_manager():
            dist.all_gather_into_tensor(outputs[0], x)
            dist.all_gather_into_tensor(outputs[1], x[:1].clone())
    elif name == "gather":
        dist.gather(x, outputs := [e(2), e(2)] if rank == 1 else [], dst=1)
    elif name == "scatter":
        dist.scatter((outputs := [e(2)])[0], rows if rank == 1 else None, src=1)
    elif name == "all_to_all_single":
        dist.all_to_all_single((outputs := [e(4)])[0], torch.cat(rows))
    elif name == "all_to_all_single_splits":
        dist.all_to_all_single((outputs := [e(sum(received))])[0], x, received, sent)
    elif name == "all_to_all":
        dist.all_to_all(outputs := [e(2), e(2)], rows)
    else:
        assert name == "all_to_all_uneven"
        dist.all_to_all(outputs := [e(n) for n in received], list(x.split(sent)))
    assert torch.equal(x, t(OWN[rank]))
    return outputs


def reduced(name: str, op_name: str, dtype: torch.dtype) -> list[Tensor]:
    rank = dist.get_rank()
    op: Any = (
        dist._make_nccl_premul_sum(3.0)
        if op_name == "premul_sum"
        else getattr(dist.ReduceOp, op_name.upper())
    )
    x = torch.tensor(OWN[rank]).to(dtype)
    rows = [torch.tensor(row).to(dtype) for row in ROWS[rank]]
    output = torch.full((2,), 9.0).to(dtype)
    if name == "all_reduce":
        dist.all_reduce(x, op)
        return [x]
    if name in ("all_reduce_coalesced", "all_reduce_managed"):
        parts = [x[:1].clone(), x[1:].clone()]
        if name == "all_reduce_coalesced":
            dist.all_reduce_coalesced(parts, op)
        else:
            with dist._coalescing_manager():
                for part in parts:
                    dist.all_reduce(part, op)
        return [torch.cat(parts)]
    if name == "reduce":
        dist.reduce(x, 1, op)
        return [x]
    if name == "reduce_scatter":
        dist.reduce_scatter(output, rows, op)
    elif name == "reduce_scatter_uneven":
        # The two elements of rank 0's part, and the first of rank 1's.
        output = output[: 2 - rank].clone()
        dist.reduce_scatter(output, [rows[0], rows[1][:1].clone()], op)
    elif name == "reduce_scatter_tensor":
        dist.reduce_scatter_tensor(output, torch.cat(rows), op)
    elif name == "reduce_scatter_tensor_stacked":
        dist.reduce_scatter_tensor(output, torch.stack(rows), op)
    else:
        assert name == "reduce_scatter_tensor_managed"
        parts = [output[:1].clone(), output[1:].clone()]
        with dist._coalescing_manager():
            for i, part in enumerate(parts):
                dist.reduce_scatter_tensor(part, torch.stack(rows)[:, i].contiguous(), op)
        output = torch.cat(parts)
    assert torch.equal(torch.stack(rows), torch.tensor(ROWS[rank]).to(dtype))
    return [output]


def expected_sums(name: str, op: str, dtype: torch.dtype) -> list[list[Any]]:
    whole, parts = SUMS[op]
    if op == "bxor" and dtype == torch.bool:
        whole = [False, True]  # 1 and 3 have one truth
    if name == "reduce":
        return [[OWN[0]], [whole]]  # only the root's tensor changes
    if name.startswith("all_reduce"):
        return [[whole], [whole]]
    if name == "reduce_scatter_uneven":
        return [[parts[0]], [parts[1][:1]]]
    return [[parts[0]], [parts[1]]]


def check(
    program: Callable[[], list[Tensor]], expected: list[Any], dtype: torch.dtype, order: Any
) -> None:
    for got, wanted in zip(
        run_spmd(program, 2, options=SpmdOptions(order=order)), expected, strict=True
    ):
        assert len(got) == len(wanted)
        for tensor, values in zip(got, wanted, strict=True):
            assert tensor.dtype == dtype
            assert tensor.tolist() == torch.tensor(values).to(dtype).tolist()


@pytest.mark.parametrize("name", MOVES)
def test_moves(name: str) -> None:
    for dtype in DTYPES:
        check(lambda dtype=dtype: moved(name, dtype), MOVES[name], dtype, "rank")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, order: str) -> None:
    for op in SUMS:
        for dtype in DTYPES:
            if gap("virtual", name, op, dtype) is None:
                expected = expected_sums(name, op, dtype)
                check(lambda op=op, dtype=dtype: reduced(name, op, dtype), expected, dtype, order)


def test_all_that_gloo_lacks_is_checked_here() -> None:
    for name, op in OPERATIONS:
        for dtype in DTYPES:
            if gap("gloo", name, op, dtype) and not gap("virtual", name, op, dtype):
                assert (op in SUMS and name in REDUCTIONS) if op else name in MOVES, name


@pytest.mark.parametrize("order", ORDERS)
def test_a_product_of_complex_numbers(order: str) -> None:
    def program() -> list[Tensor]:
        x = torch.tensor([[1 + 2j, 2j], [3 - 1j, 1 + 1j]][dist.get_rank()])
        output = torch.empty(1, dtype=x.dtype)
        dist.reduce_scatter_tensor(output, x, dist.ReduceOp.PRODUCT)
        dist.reduce(x, 0, dist.ReduceOp.PRODUCT)
        return [output, x]

    expected = [[[5 + 5j], [5 + 5j, -2 + 2j]], [[-2 + 2j], [3 - 1j, 1 + 1j]]]
    check(program, expected, torch.complex64, order)


def test_the_factor_is_each_ranks_own() -> None:
    def program(dtype: torch.dtype) -> list[Tensor]:
        x = torch.tensor([1, 2]).to(dtype)
        dist.all_reduce(x, dist._make_nccl_premul_sum([0.5, 4.0][dist.get_rank()]))
        return [x]

    for dtype in (*FLOATS, *COMPLEX):
        check(lambda dtype=dtype: program(dtype), [[[4.5, 9]]] * 2, dtype, "rank")


# What gloo does, but otherwise.


def bytes_of_bools() -> tuple[list[int], list[int]]:
    x = torch.tensor([True, True, False])
    dist.all_reduce(x)
    return x.view(torch.uint8).tolist(), x.tolist()


def extremes_with_nan() -> list[float]:
    results = []
    for op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX):
        for where in range(2):
            x = torch.tensor([math.nan if dist.get_rank() == where else 1.0])
            dist.all_reduce(x, op)
            results.append(x.item())
    return results


def test_a_sum_of_bools_is_or_and_its_byte_is_one(gloo_pool: GlooPool) -> None:
    assert run_spmd(bytes_of_bools, 2) == [([1, 1, 0], [True, True, False])] * 2
    # gloo adds bytes: what reads the 2 as a number sees it.
    assert gloo_pool.values(bytes_of_bools, 2) == [([2, 2, 0], [True, True, False])] * 2


def test_a_nan_is_kept_in_minimum_and_maximum(gloo_pool: GlooPool) -> None:
    for order in ORDERS:
        for results in run_spmd(extremes_with_nan, 2, options=SpmdOptions(order=order)):
            assert all(map(math.isnan, results))
    for results in gloo_pool.values(extremes_with_nan, 2):
        assert not all(map(math.isnan, results))
