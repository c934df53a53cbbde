"""The two orders of summation of virtual ranks: by hand, and beside gloo's own processes."""

from __future__ import annotations

import contextlib
import itertools
import math
import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection

import psutil
import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooHangError, GlooPool, gloo_pool_fixture, pool  # noqa: F401
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import DeviceType

from kernelbench_dist.distributed_collectives._reductions import fold
from kernelbench_dist.distributed_collectives.virtual._sums import fold_into, reduce_ranks

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
_BITWISE = ["min", "max", "band", "bor", "bxor"]
OPS = {
    **{dtype: ["sum", "avg", "prod", "min", "max"] for dtype in FLOATS},
    **{dtype: ["sum", "prod", *_BITWISE] for dtype in INTEGERS},
    **{dtype: ["sum", "avg"] for dtype in COMPLEX},
    torch.bool: ["prod", *_BITWISE],
}
DTYPES = list(OPS)
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# (collective, op, dtype, shape, seed)
Case = tuple[str, str, torch.dtype, tuple[int, ...], int]


def values(dtype: torch.dtype, shape: Sequence[int], rank: int, seed: int) -> Tensor:
    """Numbers of many sizes, and zeros of both signs; no NaN comes of them."""
    g = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=g).bool()
    if not (dtype.is_floating_point or dtype.is_complex):
        limits = torch.iinfo(dtype)
        return torch.randint(limits.min, limits.max, shape, generator=g, dtype=dtype)
    draws = torch.randn(shape, dtype=torch.float64, generator=g)
    zeros = torch.randint(0, 4, shape, generator=g) == 0
    numbers = torch.where(zeros, 0 * draws, draws * torch.exp2(2 * draws))
    if dtype.is_complex:
        numbers = torch.complex(numbers, numbers.flip(0) / 3 if numbers.dim() else numbers / 3)
    return numbers.to(dtype)


def ask_gloo(cases: Sequence[Case]) -> list[Tensor]:
    """What this rank gets in each case."""
    return [
        GLOO[kind](getattr(dist.ReduceOp, "PRODUCT" if op == "prod" else op.upper()), *rest)
        for kind, op, *rest in cases
    ]


def _mine(dtype: torch.dtype, shape: Sequence[int], seed: int) -> Tensor:
    return values(dtype, shape, dist.get_rank(), seed)


def _all_reduce(op: dist.ReduceOp, dtype: torch.dtype, shape: Sequence[int], seed: int) -> Tensor:
    x = _mine(dtype, shape, seed)
    dist.all_reduce(x, op)
    return x


def _channels_last(
    op: dist.ReduceOp, dtype: torch.dtype, shape: Sequence[int], seed: int
) -> Tensor:
    x = _mine(dtype, shape, seed).to(memory_format=torch.channels_last)
    dist.all_reduce(x, op)
    return x.contiguous()


def _reduce(op: dist.ReduceOp, dtype: torch.dtype, shape: Sequence[int], seed: int) -> Tensor:
    """To each rank in turn."""
    result = torch.empty(shape, dtype=dtype)
    for root in range(dist.get_world_size()):
        x = _mine(dtype, shape, seed)
        dist.reduce(x, root, op)
        if root == dist.get_rank():
            result = x
    return result


def _reduce_scatter_tensor(
    op: dist.ReduceOp, dtype: torch.dtype, shape: Sequence[int], seed: int
) -> Tensor:
    x = _mine(dtype, shape, seed)
    result = torch.empty(shape[0] // dist.get_world_size(), *shape[1:], dtype=dtype)
    dist.reduce_scatter_tensor(result, x, op)
    return result


def _reduce_scatter(
    op: dist.ReduceOp, dtype: torch.dtype, shape: Sequence[int], seed: int
) -> Tensor:
    size = dist.get_world_size()
    result = torch.empty(shape[0] // size, *shape[1:], dtype=dtype)
    dist.reduce_scatter(result, list(_mine(dtype, shape, seed).chunk(size)), op)
    return result


def _coalesced(op: dist.ReduceOp, dtype: torch.dtype, shape: Sequence[int], seed: int) -> Tensor:
    """In three parts, of which the first has one element."""
    x = _mine(dtype, shape, seed)
    parts = [part.clone() for part in x.tensor_split([1, len(x) // 2])]
    with dist._coalescing_manager():
        for part in parts:
            dist.all_reduce(part, op)
    return torch.cat(parts)


GLOO = {
    "all_reduce": _all_reduce,
    "channels_last": _channels_last,
    "reduce": _reduce,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "reduce_scatter": _reduce_scatter,
    "coalesced": _coalesced,
}

# torch.distributed hands these a complex tensor to its process group as one of real numbers.
VIEWED = ("all_reduce", "coalesced")


def ours(case: Case, size: int) -> list[Tensor]:
    """What each rank gets in a case."""
    kind, op, dtype, shape, seed = case
    xs = [values(dtype, shape, r, seed) for r in range(size)]
    if dtype.is_complex and kind in VIEWED:
        xs = [torch.view_as_real(x) for x in xs]
    if kind == "channels_last":
        xs = [x.to(memory_format=torch.channels_last) for x in xs]
    if kind == "reduce_scatter":
        columns = zip(*(x.chunk(size) for x in xs), strict=True)
        return [reduce_ranks(column, op, "gloo_ring") for column in columns]
    whole = reduce_ranks(xs, op, "gloo_ring", to_root=kind == "reduce")
    if dtype.is_complex and kind in VIEWED:
        whole = torch.view_as_complex(whole)
    if kind == "reduce_scatter_tensor":
        return list(whole.chunk(size))
    return [whole] * size


def same_bits(a: Tensor, b: Tensor) -> bool:
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    bits = BITS[a.element_size()]
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(bits), b.contiguous().view(bits))


def compare(pool: GlooPool, size: int, cases: Sequence[Case]) -> None:
    gloo = pool.values(ask_gloo, size, cases)
    for i, case in enumerate(cases):
        for rank, mine in enumerate(ours(case, size)):
            assert same_bits(mine, gloo[rank][i]), (case, f"rank {rank} of {size}")


def cases_of(kind: str, lengths: Sequence[int]) -> list[Case]:
    return [
        (kind, op, dtype, (length,), i)
        for i, length in enumerate(lengths)
        for dtype, ops in OPS.items()
        for op in ops
    ]


def test_rank_order_by_hand() -> None:
    # 2^24 + 1 is no float32 and rounds to 2^24; 2^24 + 2 is one.
    big, one = torch.tensor([2.0**24]), torch.tensor([1.0])
    assert reduce_ranks([big, one, one], "sum", "rank").item() == 2.0**24
    assert reduce_ranks([one, one, big], "sum", "rank").item() == 2.0**24 + 2
    assert reduce_ranks([one, 2 * one, 6 * one], "avg", "rank").item() == 3
    assert reduce_ranks([2 * one, 3 * one, -one], "prod", "rank").item() == -6
    assert reduce_ranks([2 * one, 3 * one, -one], "min", "rank").item() == -1
    bits = [torch.tensor(n) for n in (0b1100, 0b1010, 0b1001)]
    for op, expected in (("band", 0b1000), ("bor", 0b1111), ("bxor", 0b1111), ("max", 0b1100)):
        assert reduce_ranks(bits, op, "rank").item() == expected
        assert reduce_ranks(bits, op, "gloo_ring").item() == expected


def test_rank_order_rounds_half_types_once_and_the_ring_at_each_step() -> None:
    # bfloat16 has 8 bits: 256 + 1 rounds to 256, and 258 is a number.
    xs = [torch.tensor([v], dtype=torch.bfloat16) for v in (1.0, 1.0, 256.0)]
    assert reduce_ranks(xs, "sum", "rank").item() == 258
    # One element is in chunk 0, which goes from rank 2 down to rank 0.
    assert reduce_ranks(xs, "sum", "gloo_ring").item() == 256


def test_ring_order_by_hand() -> None:
    # 12 bytes are 6 segments of 2 bytes, rounded up to 4; so chunk 0 is elements 0 and 1, which
    # add ranks 2, 1, 0; chunk 1 is element 2, which adds ranks 0, 2, 1; and chunk 2 is empty.
    xs = [torch.full((3,), v) for v in (2.0**24, 1.0, 1.0)]
    expected = [2.0**24 + 2, 2.0**24 + 2, 2.0**24]
    assert reduce_ranks(xs, "sum", "gloo_ring").tolist() == expected


def test_complex_buffers_are_cut_as_real_ones() -> None:
    # 3 ranks, 2 numbers: 4 real ones of 4 bytes, chunks of 2; as 2 of 8 bytes they were one chunk.
    xs = [torch.complex(torch.full((2,), v), torch.full((2,), v)) for v in (2.0**24, 1.0, 1.0)]
    expected = [complex(2**24 + 2, 2**24 + 2), complex(2**24, 2**24)]
    assert reduce_ranks(xs, "sum", "gloo_ring").tolist() == expected


@pytest.mark.parametrize("order", ["rank", "gloo_ring"])
@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("where", range(3))
def test_a_nan_stays_in_minimum_and_maximum(order: str, op: str, where: int) -> None:
    xs = [torch.tensor([1.0, 5.0]), torch.tensor([2.0, 4.0]), torch.tensor([3.0, 0.0])]
    xs[where][0] = math.nan
    nan, number = reduce_ranks(xs, op, order).tolist()
    assert math.isnan(nan)
    assert number == (0.0 if op == "min" else 5.0)


@pytest.mark.parametrize("order", ["rank", "gloo_ring"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_stay_and_nothing_looks_at_the_values(order: str, dtype: torch.dtype) -> None:
    for op in OPS[dtype]:
        xs = [values(dtype, (2, 5), r, 0) for r in range(3)]
        before = [x.clone() for x in xs]
        result = reduce_ranks(xs, op, order)
        assert all(map(torch.equal, xs, before))
        # A meta tensor has no values.
        empty = reduce_ranks([x.to("meta") for x in xs], op, order)
        assert (empty.shape, empty.dtype) == (result.shape, result.dtype) == ((2, 5), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["rank", "gloo_ring"])
def test_a_gpu_has_the_bits_of_the_cpu_and_the_host_never_waits(
    order: str, dtype: torch.dtype
) -> None:
    for op in OPS[dtype]:
        xs = [values(dtype, (1001,), r, 1) for r in range(8)]
        there = [x.cuda() for x in xs]
        torch.cuda.set_sync_debug_mode("error")
        try:
            result = reduce_ranks(there, op, order)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert same_bits(reduce_ranks(xs, op, order), result.cpu()), op


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_fold_into_some_or_all_ranks_own_tensors(dtype: torch.dtype, device: str) -> None:
    """Of lengths that fill a thread's loads or do not, and aligned for them or not."""
    drawn = itertools.product((1, 2, 3, 8, 64, 128, 129), (0, 1, 7, 1000, 1025), (0, 1))
    for i, (size, length, start) in enumerate(drawn):
        op = OPS[dtype][i % len(OPS[dtype])]
        xs = [values(dtype, (length + start,), r, i) for r in range(size)]
        there = [x.to(device, copy=True)[start:] for x in xs]
        last, every = torch.zeros_like(there[0]), [x.clone() for x in there]
        fold_into([last], there, op)
        fold_into(every, every, op)
        expected = fold(there, op).cpu()
        for mine, x in zip(there, xs, strict=True):
            assert same_bits(mine.cpu(), x[start:])
        for result in (last, *every):
            assert same_bits(result.cpu(), expected), (size, length, start, op)


@pytest.mark.gpu
def test_a_fold_is_one_kernel() -> None:
    xs = [torch.full((1024,), float(r), device="cuda") for r in range(64)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        fold_into(xs, xs, "sum")
    kernels = [e.name for e in seen.events() if e.device_type == DeviceType.CUDA]
    assert len(kernels) == 1, kernels
    assert "fold_ranks" in kernels[0]
    assert all(float(x.sum()) == 1024 * 2016 for x in xs)


@pytest.mark.gpu
def test_what_a_fold_leaves_to_torch() -> None:
    """Whole numbers, other layouts, other sizes: the kernel says so, and does nothing."""
    run = torch.ops.kernelbench_dist._fold_ranks
    x = torch.ones(4, 4, device="cuda")
    for xs, out, op in [
        ([x.long()], x.long(), "sum"),
        ([x], x.half(), "sum"),
        ([x, x[:2]], x.clone(), "sum"),
        ([x.T], x.clone()[:, :2], "sum"),
        ([x], x.clone(), "bor"),
        ([x], torch.ones(4, 4), "sum"),
        ([x] * 129, x.clone(), "sum"),
    ]:
        before = out.clone()
        assert not run(xs, [out], op)
        assert torch.equal(out, before)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_reduce_has_gloos_bits(gloo_pool: GlooPool, size: int) -> None:
    lengths = dict.fromkeys([0, 1, size - 1, size, size + 1, 1000])
    compare(gloo_pool, size, cases_of("all_reduce", list(lengths)))


@pytest.mark.slow
@pytest.mark.parametrize("size", [5, 6, 7, 8])
def test_all_reduce_has_gloos_bits_at_more_ranks(gloo_pool: GlooPool, size: int) -> None:
    compare(gloo_pool, size, cases_of("all_reduce", [0, 1, size - 1, size, size + 1, 1000]))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 8])
def test_all_reduce_has_gloos_bits_over_a_mebibyte(gloo_pool: GlooPool, size: int) -> None:
    for dtype in FLOATS:
        compare(gloo_pool, size, [("all_reduce", "sum", dtype, (n,), 1) for n in (300000, 1 << 20)])


@pytest.mark.parametrize("kind", ["all_reduce", "reduce"])
def test_reduce_cuts_large_buffers_elsewhere(gloo_pool: GlooPool, kind: str) -> None:
    # 7 MiB at 3 ranks: all_reduce has chunks of a third, reduce of 3 MiB.
    length = 7 << 18
    compare(gloo_pool, 3, [(kind, "sum", torch.float32, (length,), 2)])
    xs = [values(torch.float32, (length,), r, 2) for r in range(3)]
    one, other = (reduce_ranks(xs, "sum", "gloo_ring", to_root=root) for root in (False, True))
    assert not torch.equal(one, other)


@pytest.mark.parametrize("kind", ["reduce", "reduce_scatter_tensor", "reduce_scatter"])
@pytest.mark.parametrize("size", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_other_reductions_have_gloos_bits(gloo_pool: GlooPool, kind: str, size: int) -> None:
    compare(gloo_pool, size, cases_of(kind, [size, 40 * size]))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_coalesced_tensors_are_one_buffer(gloo_pool: GlooPool, size: int) -> None:
    compare(gloo_pool, size, [("coalesced", "sum", dtype, (101,), 3) for dtype in FLOATS])


def test_a_channels_last_tensor_is_cut_as_its_memory_lies(gloo_pool: GlooPool) -> None:
    compare(gloo_pool, 3, [("channels_last", "sum", torch.float32, (2, 3, 4, 5), 4)])


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(data=st.data(), size=st.integers(1, 8))
def test_drawn_all_reduces_have_gloos_bits(
    gloo_pool: GlooPool, data: st.DataObject, size: int
) -> None:
    cases = []
    for _ in range(4):
        dtype = data.draw(st.sampled_from(DTYPES))
        op = data.draw(st.sampled_from(OPS[dtype]))
        shape = tuple(data.draw(st.lists(st.integers(0, 30), max_size=3)))
        cases.append(("all_reduce", op, dtype, shape, data.draw(st.integers(0, 1000))))
    compare(gloo_pool, size, cases)


# What the pool of gloo ranks promises, on which all of the above and other files stand.


def add_ranks(t: Tensor, text: str) -> tuple[Tensor, str]:
    t = t + dist.get_rank()
    dist.all_reduce(t)
    return t, text


def fail_on_rank_1(how: str) -> int:
    if dist.get_rank() == 1:
        if how == "raise":
            raise KeyError("mine")
        if how == "die":
            os._exit(3)
        return 1
    dist.all_reduce(torch.ones(1))
    return 0


def wait_for_each_other() -> None:
    dist.recv(torch.ones(1), 1 - dist.get_rank())


def draw() -> float:
    return torch.rand(()).item()


def hold(pids: Connection) -> None:
    """For another process: has a pool with a call that hangs, and says who its processes are."""
    pool().run(draw, 2)
    pids.send([p.pid for p in psutil.Process().children(recursive=True)])
    pool().run(wait_for_each_other, 2)


def test_pool_gives_the_results_in_rank_order(gloo_pool: GlooPool) -> None:
    for size in (1, 3, 2):
        expected = size + size * (size - 1) / 2
        for t, text in gloo_pool.run(add_ranks, size, torch.ones(2), "x"):
            assert t.tolist() == [expected, expected]
            assert text == "x"
    first, second = gloo_pool.values(draw, 1), gloo_pool.values(draw, 1)
    assert first == second


@pytest.mark.parametrize("how", ["raise", "die", "return"])
def test_pool_gives_what_each_rank_raised(gloo_pool: GlooPool, how: str) -> None:
    # The others would wait for ever if rank 1's connections did not close.
    first, second, third = gloo_pool.run(fail_on_rank_1, 3, how)
    assert first.type == third.type == "RuntimeError"
    if how == "return":
        assert second == 1
    else:
        assert (second.type, second.message) == {
            "raise": ("KeyError", "'mine'"),
            "die": ("ProcessDied", "the process of the rank ended"),
        }[how]
        with pytest.raises(AssertionError, match="rank 0: "):
            gloo_pool.values(fail_on_rank_1, 3, how)
    assert len(gloo_pool.values(draw, 3)) == 3


def test_pool_reports_a_hang_and_goes_on(gloo_pool: GlooPool) -> None:
    gloo_pool.values(draw, 2)
    with pytest.raises(
        GlooHangError, match=r"ranks \[0, 1\] of 2 .* wait_for_each_other after 1 s"
    ):
        gloo_pool.run(wait_for_each_other, 2, limit=1)
    assert len(gloo_pool.values(draw, 2)) == 2


def test_pool_refuses_what_it_cannot_run(gloo_pool: GlooPool) -> None:
    with pytest.raises(ValueError, match="world_size is 9; 1 to 8 is accepted"):
        gloo_pool.run(draw, 9)
    with pytest.raises(ValueError, match="no function of a module"):
        gloo_pool.run(lambda: None, 1)


@pytest.mark.slow
def test_pool_ends_when_its_process_is_killed() -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=hold, args=(theirs,))
    process.start()
    try:
        assert ours.poll(60)
        pids = ours.recv()
    finally:
        process.kill()
        process.join()
    assert len(pids) >= 3  # The nursery, the two ranks, and more that may be on their way.
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(10)
