"""Tensors that share memory, tensors that have none, and what portable programs may not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooPool, gloo_pool_fixture  # noqa: F401
from torch._subclasses.fake_tensor import FakeTensorMode

from kernelbench_dist.distributed_collectives._errors import RankError
from kernelbench_dist.distributed_collectives.spmd import SpmdOptions, run_spmd
from kernelbench_dist.distributed_collectives.virtual._calls import line_of

# Some of the calls have newer names, which torch 2.11 does not know.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*all_reduce_coalesced.*"),
]

PORTABLE = SpmdOptions(mode="portable")


def own(whole: torch.Tensor, place: int | None = None) -> torch.Tensor:
    """The part of one rank in a tensor for two; without a place, this rank's."""
    place = dist.get_rank() if place is None else place
    return whole.view(2, -1)[place]


def other() -> int:
    return 1 - dist.get_rank()


# In place: what is right on gloo stays right.


def gathered_where_its_part_is() -> list[float]:
    whole = torch.full((4,), -1.0)
    own(whole).fill_(dist.get_rank() + 5.0)
    dist.all_gather_into_tensor(whole, own(whole))
    return whole.tolist()


def scattered_where_its_part_is() -> list[float]:
    whole = torch.arange(4.0) + 100 * dist.get_rank()
    dist.reduce_scatter_tensor(own(whole), whole)
    return own(whole).tolist()


def gathered_from_an_output() -> list[list[float]]:
    outputs = [torch.full((2,), -1.0) for _ in range(2)]
    x = outputs[other()].fill_(dist.get_rank() + 5.0)
    dist.all_gather(outputs, x)
    return [y.tolist() for y in outputs]


def scattered_into_an_input() -> list[float]:
    xs = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]
    dist.scatter(xs[dist.get_rank()], xs if dist.get_rank() == 0 else None, 0)
    return xs[dist.get_rank()].tolist()


def reduced_into_an_input() -> list[float]:
    xs = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]
    dist.reduce_scatter(xs[dist.get_rank()], xs)
    return xs[dist.get_rank()].tolist()


_IN_PLACE: list[tuple[Callable[[], Any], list[Any]]] = [
    (gathered_where_its_part_is, [[5.0, 5.0, 6.0, 6.0]] * 2),
    (scattered_where_its_part_is, [[100.0, 102.0], [104.0, 106.0]]),
    (gathered_from_an_output, [[[5.0, 5.0], [6.0, 6.0]]] * 2),
    (scattered_into_an_input, [[1.0, 2.0], [3.0, 4.0]]),
    (reduced_into_an_input, [[2.0, 4.0], [6.0, 8.0]]),
]


@pytest.mark.parametrize(("fn", "expected"), _IN_PLACE, ids=lambda v: getattr(v, "__name__", ""))
def test_in_place_where_backends_have_it(
    gloo_pool: GlooPool, fn: Callable[[], Any], expected: list[Any]
) -> None:
    assert gloo_pool.values(fn, 2) == expected
    assert run_spmd(fn, 2) == expected


def gathered_from_anothers_part() -> None:
    whole = torch.ones(4)
    dist.all_gather_into_tensor(whole, own(whole, other()))


def gathered_from_the_middle() -> None:
    whole = torch.ones(4)
    dist.all_gather_into_tensor(whole, whole[1:3])


def scattered_into_the_middle() -> None:
    whole = torch.ones(4)
    dist.reduce_scatter_tensor(whole[1:3], whole)


def scattered_into_anothers_part() -> None:
    xs = [torch.ones(2), torch.zeros(2)]
    dist.scatter(xs[other()], xs if dist.get_rank() == 0 else None, 0)


def reduced_into_anothers_part() -> None:
    xs = [torch.ones(2), torch.zeros(2)]
    dist.reduce_scatter(xs[other()], xs)


def exchanged_by_one_element() -> None:
    x = torch.ones(5)
    dist.all_to_all_single(x[1:], x[:-1])


def lists_exchanged_by_one_element() -> None:
    x = torch.ones(5)
    dist.all_to_all([x[1:3], x[3:]], [x[:2], torch.ones(2)])


@pytest.mark.parametrize(
    "fn",
    [
        gathered_from_anothers_part,
        gathered_from_the_middle,
        scattered_into_the_middle,
        scattered_into_anothers_part,
        reduced_into_anothers_part,
        exchanged_by_one_element,
        lists_exchanged_by_one_element,
    ],
)
def test_other_overlaps_of_input_and_output_are_refused(fn: Callable[[], None]) -> None:
    with pytest.raises(RankError, match="the input's memory is the output's too"):
        run_spmd(fn, 2)


# Calls in flight.


def test_one_tensor_may_be_read_twice_and_used_again_after_the_wait():
    def program():
        x, ys = torch.full((2,), dist.get_rank() + 1.0), [torch.empty(2), torch.empty(2)]
        works = [dist.isend(x, other(), tag=t) for t in (1, 2)]
        works += [dist.irecv(y, other(), tag=t) for y, t in zip(ys, (1, 2), strict=True)]
        for work in works:
            work.wait()
        for _ in range(2):
            dist.all_reduce(x, async_op=True).wait()
        return x.tolist(), [y.tolist() for y in ys]

    sums = [6.0, 6.0]  # 1 + 2, twice that
    assert run_spmd(program, 2) == [(sums, [[2.0, 2.0]] * 2), (sums, [[1.0, 1.0]] * 2)]


def test_the_source_of_a_broadcast_may_send_the_tensor_meanwhile():
    def program():
        x, y = torch.full((2,), float(dist.get_rank())), torch.empty(2)
        works = [dist.broadcast(x, 0, async_op=True)]
        works += [dist.isend(x, 1)] if dist.get_rank() == 0 else [dist.irecv(y, 0)]
        for work in works:
            work.wait()
        return x.tolist()

    assert run_spmd(program, 2) == [[0.0, 0.0]] * 2


def test_work_that_all_have_met_is_in_nobodys_way():
    def program():
        x = torch.ones(1)
        dist.all_reduce(x, async_op=True)
        dist.barrier()  # behind it the sum is done, though nobody has waited for it
        dist.all_reduce(x, async_op=True)
        dist.barrier()
        return x.item()

    assert run_spmd(program, 2) == [4.0, 4.0]


def test_a_refused_call_does_not_count():
    def program():
        x, y = torch.ones(1), torch.ones(1)
        work = dist.all_reduce(x, async_op=True)
        with pytest.raises(ValueError, match="not done"):
            dist.all_reduce(x, async_op=True)
        dist.all_reduce(y)
        work.wait()
        return x.item(), y.item()

    def last():
        works = [dist.all_reduce(x := torch.ones(1), async_op=True)]
        dist.all_reduce(y := torch.ones(1))
        works[0].wait()
        return x.item(), y.item()

    assert run_spmd(lambda: program() if dist.get_rank() == 0 else last(), 2) == [(2.0, 2.0)] * 2


# A scalar is a tensor of one element to a message.


@pytest.mark.parametrize("shapes", [((), (1,)), ((1, 1), ()), ((), ())])
def test_a_scalar_is_received_as_one_element(shapes: tuple[tuple[int, ...], ...]) -> None:
    def program():
        if dist.get_rank() == 0:
            dist.send(torch.full(shapes[0], 3.0), 1)
            return None
        dist.recv(y := torch.zeros(shapes[1]), 0)
        return y

    _, received = run_spmd(program, 2)
    assert received.shape == shapes[1]
    assert received.item() == 3.0


@pytest.mark.parametrize("shapes", [((1,), (1, 1)), ((0,), ()), ((2,), (2, 1))])
def test_other_shapes_are_not_received(shapes: tuple[tuple[int, ...], ...]) -> None:
    def program():
        if dist.get_rank() == 0:
            dist.send(torch.ones(shapes[0]), 1)
        else:
            dist.recv(torch.zeros(shapes[1]), 0)

    with pytest.raises(RankError, match="do not fit"):
        run_spmd(program, 2)


# Tensors without values.


def calls_on_meta() -> list[str]:
    x = torch.ones(2, device="meta")
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    dist.all_gather([torch.ones(2, device="meta") for _ in range(2)], x)
    dist.all_gather_into_tensor(whole := torch.ones(4, device="meta"), x)
    dist.reduce_scatter_tensor(x, whole)
    dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x, 0)
    return [str(x.device), str(tuple(x.shape))]


def calls_on_fake_tensors() -> list[str]:
    with FakeTensorMode():
        x = torch.ones(2)
        dist.all_reduce(x)
        dist.all_gather_into_tensor(whole := torch.ones(4), x)
        dist.reduce_scatter_tensor(x, whole)
    return [type(x).__name__, str(tuple(x.shape))]


@pytest.mark.parametrize("fn", [calls_on_meta, calls_on_fake_tensors])
def test_tensors_without_values_pass_and_nothing_is_moved(
    gloo_pool: GlooPool, fn: Callable[[], list[str]]
) -> None:
    outcomes = run_spmd(fn, 2)
    assert outcomes == gloo_pool.values(fn, 2)
    assert outcomes[0] == (["meta", "(2,)"] if fn is calls_on_meta else ["FakeTensor", "(2,)"])


# What only some have. The table as a whole is compared in test_conformance.


def stacked() -> None:
    dist.all_gather_into_tensor(torch.empty(2, 3), torch.ones(3))


def uneven() -> None:
    dist.all_gather([torch.empty(1), torch.empty(2)], torch.ones(dist.get_rank() + 1))


def uneven_exchange() -> None:
    sizes = [1, 2]
    mine = sizes[dist.get_rank()]
    dist.all_to_all([torch.empty(mine) for _ in sizes], [torch.ones(n) for n in sizes])


def short_integers() -> None:
    dist.broadcast(torch.ones(2, dtype=torch.int16), 0)


def short_integers_in_a_message() -> None:
    x = torch.ones(2, dtype=torch.int16)
    dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x, 0)


def bits() -> None:
    dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.BAND)


def scaled_sum() -> None:
    dist.all_reduce(torch.ones(2), dist._make_nccl_premul_sum(0.5))


def complex_gather() -> None:
    x = torch.ones(2, dtype=torch.complex64)
    root = dist.get_rank() == 0
    dist.gather(x, [torch.empty_like(x), torch.empty_like(x)] if root else None, 0)


def complex_product() -> None:
    dist.reduce(torch.ones(2, dtype=torch.complex64), 0, dist.ReduceOp.PRODUCT)


def coalesced_gather() -> None:
    dist.all_gather_coalesced([[torch.ones(2)] for _ in range(2)], [torch.ones(2)])


def monitored() -> None:
    dist.monitored_barrier()


def any_source() -> None:
    x = torch.ones(2)
    dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x)


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (stacked, r"gloo lacks the stacked form \(\(6,\) is accepted\)"),
        (uneven, "gloo lacks tensors of several shapes"),
        (uneven_exchange, "gloo lacks tensors of several shapes"),
        (short_integers, "int16.*: gloo lacks this dtype, NCCL lacks this dtype"),
        (short_integers_in_a_message, "int16.*: NCCL lacks this dtype"),
        (bits, "op band.*: NCCL lacks this op"),
        (scaled_sum, "op premul_sum.*: gloo lacks this op"),
        (complex_gather, "gloo lacks gather of complex numbers, NCCL lacks this call of complex"),
        (complex_product, "gloo lacks products of complex numbers, NCCL lacks this call of comp"),
        (coalesced_gather, r"all_gather_coalesced\(.*: NCCL lacks this call;"),
        (monitored, r"monitored_barrier\(\).*: NCCL lacks this call;"),
        (any_source, "NCCL lacks receives from any rank"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_portable_refuses_and_names_who_lacks_it(fn: Callable[[], None], says: str) -> None:
    run_spmd(fn, 2)
    with pytest.raises(RankError, match=says):
        run_spmd(fn, 2, options=PORTABLE)


def uneven_sums() -> float:
    xs = [torch.ones(1), torch.ones(2)]
    dist.reduce_scatter(y := torch.empty(dist.get_rank() + 1), xs)
    return y.sum().item()


def test_portable_takes_what_gloo_and_nccl_have(gloo_pool: GlooPool) -> None:
    expected = [2.0, 4.0]
    assert run_spmd(uneven_sums, 2, options=PORTABLE) == expected
    assert gloo_pool.values(uneven_sums, 2) == expected


def test_the_line_of_an_error_is_the_programs():
    try:
        raising = "the line below"
        torch.ones(2).view(3)
    except RuntimeError as error:
        line = line_of(error)
    first = test_the_line_of_an_error_is_the_programs.__code__.co_firstlineno
    assert raising
    assert line == f"{__file__}:{first + 3}"
    assert line_of(ValueError("never raised")) is None
