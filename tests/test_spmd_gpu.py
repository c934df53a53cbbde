"""Eight virtual ranks on one GPU: own kernels, streams, gradients, and NCCL beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
import torch.nn.functional as F
from conformance import cells, comparable, lacks
from conformance_calls import CALLS, Case, calls, same
from torch import Tensor

from kernelbench_dist import ops
from kernelbench_dist.distributed_collectives import SpmdOptions, functional, run_spmd

RANKS = 8
SPIN = 20_000_000  # about 10 ms: work that is not there yet, unless its stream is waited for

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::FutureWarning")]


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def own(*shape: int, seed: int = 0) -> Tensor:
    """This rank's part of drawn(RANKS, *shape)."""
    return drawn(RANKS, *shape, seed=seed)[dist.get_rank()].float().cuda()


def close(result: Tensor, expected: Tensor) -> None:
    """In proportion to the largest element: each is a sum of some hundred products at most."""
    bound = 1e-5 * float(expected.abs().max())
    torch.testing.assert_close(result.double().cpu(), expected, rtol=0, atol=bound)


def test_a_fused_operator_between_collectives() -> None:
    """Each rank gathers all ranks' activations, and multiplies them with its own weights."""
    weight = drawn(RANKS, 56, RANKS * 32, seed=1)

    def program() -> Tensor:
        parts = [torch.empty(12, 32, device="cuda") for _ in range(RANKS)]
        dist.all_gather(parts, own(12, 32))
        y = ops.all_gather_linear(torch.stack(parts), weight[dist.get_rank()].float().cuda())
        dist.all_reduce(y)
        return y

    x = drawn(RANKS, 12, 32, seed=0)
    expected = F.linear(torch.cat(x.unbind(), -1), weight.sum(0))
    for y in run_spmd(program, RANKS, device="cuda"):
        close(y, expected)


def test_a_triton_kernel_of_each_rank() -> None:
    pytest.importorskip("triton")
    from triton_kernels import scaled  # a module: Triton reads its source

    def program() -> Tensor:
        y = scaled(own(1000), float(dist.get_rank() + 1))
        dist.all_reduce(y)
        return scaled(y, 0.5)

    x, scales = drawn(RANKS, 1000, seed=0).float(), torch.arange(1.0, RANKS + 1)
    expected = 0.5 * sum(x * scale for x, scale in zip(x, scales, strict=True))
    for y in run_spmd(program, RANKS, device="cuda"):
        close(y, expected.double())


def test_backward_through_collectives() -> None:
    """Rank r's loss is the sum over ranks s of (r + 1) f(x_s), so x_s gets 36 f'(x_s)."""

    def program() -> Tensor:
        x = own(5, 7).requires_grad_()
        gathered = functional.all_gather(x.unsqueeze(0))
        loss = (dist.get_rank() + 1) * torch.tanh(gathered).sum()
        loss.backward()
        assert x.grad is not None
        return x.grad

    x = drawn(RANKS, 5, 7, seed=0)
    for grad, mine in zip(run_spmd(program, RANKS, device="cuda"), x, strict=True):
        expected = 36 * (1 - torch.tanh(mine) ** 2)
        close(grad, expected)


@pytest.mark.parametrize("waits", ["call", "work", "future"])
@pytest.mark.parametrize("where", ["all on side streams", "odd ranks on side streams"])
def test_a_collective_follows_the_streams_of_all_ranks(where: str, waits: str) -> None:
    def program() -> Tensor:
        rank, current = dist.get_rank(), torch.cuda.current_stream()
        side = current if where.startswith("odd") and rank % 2 == 0 else torch.cuda.Stream()
        x = torch.zeros(1 << 20, device="cuda")
        side.wait_stream(current)
        with torch.cuda.stream(side):
            torch.cuda._sleep(SPIN)
            x += rank + 1
            work = dist.all_reduce(x, async_op=waits != "call")
            if waits == "call":
                current.wait_stream(side)
        if waits == "work":
            work.wait()  # the current stream waits, not the one on which it was called
        elif waits == "future":
            work.get_future().wait()
        return 2 * x

    for y in run_spmd(program, RANKS, device="cuda"):
        assert torch.equal(y, torch.full_like(y, 72.0))


def test_fused_operators_of_symmetric_memory_fall_back() -> None:
    shared = drawn(16, 8, seed=1).float()

    def program() -> list[Tensor]:
        group = dist.group.WORLD.group_name
        run = torch.ops.symm_mem
        gathered, (product,) = run.fused_all_gather_matmul(own(4, 16), [shared.cuda()], 0, group)
        scattered = run.fused_matmul_reduce_scatter(gathered, shared.cuda(), "sum", 0, group)
        return [gathered, product, scattered]

    whole = drawn(RANKS, 4, 16, seed=0).float().reshape(-1, 16)
    product = whole.double() @ shared.double()
    with symmetric._test_mode():
        results = run_spmd(program, RANKS, device="cuda")
    for rank, (gathered, multiplied, scattered) in enumerate(results):
        assert torch.equal(gathered.cpu(), whole)
        close(multiplied, product)
        close(scattered, RANKS * product[4 * rank : 4 * rank + 4])


def test_the_host_waits_for_no_rank() -> None:
    def program() -> Tensor:
        x = torch.ones(1000, device="cuda")
        dist.barrier()
        torch.cuda.set_sync_debug_mode("error")
        try:
            dist.all_reduce(x)
            dist.broadcast(x, 3)
            y = torch.empty(RANKS * 1000, device="cuda")
            dist.all_gather_into_tensor(y, x)
            dist.reduce_scatter_tensor(x, y)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return x

    for x in run_spmd(program, RANKS, device="cuda"):
        assert torch.equal(x, torch.full_like(x, 64.0))


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_nccl_of_one_rank_agrees(name: str) -> None:
    cases = [
        case
        for case in cells(name)
        if not (lacks("nccl", case) or lacks("virtual", case) or shortened(case))
    ]
    if not cases:
        pytest.skip("NCCL has none of it")
    ours = run_spmd(calls, 1, (cases, "cuda"), options=SpmdOptions(order="gloo_ring"))
    others = nccl_of_one(calls, cases, "cuda")
    wrong = []
    for case, a, b in zip(cases, ours[0], others, strict=True):
        mine, theirs = comparable(case, a), comparable(case, b)
        if mine.keys() != theirs.keys():
            wrong.append(f"{case.operation} {case.dtype}: {a}, NCCL: {b}")
        else:
            wrong += [
                f"{case.operation} {case.dtype}: {key} is {mine[key]}, NCCL: {theirs[key]}"
                for key in mine
                if not same(mine[key], theirs[key])
            ]
    assert not wrong, "\n".join(wrong)


def shortened(case: Case) -> bool:
    """What NCCL 2.28 does otherwise on one rank: no factor is applied, or it gives zeros."""
    return case.op == "premul_sum" and (
        case.name.startswith("reduce_scatter") or case.dtype == torch.bfloat16
    )


def nccl_of_one(fn: Callable[..., Any], *args: Any) -> Any:
    """fn(*args) as NCCL's only rank, in this process: one of its own would take seconds."""
    dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore())
    try:
        return fn(*args)
    finally:
        dist.destroy_process_group()
