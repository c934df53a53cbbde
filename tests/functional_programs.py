"""Programs with differentiable collectives, for any backend of torch.distributed.

Each takes its rank and the number of ranks. What it returns is written by hand in the test, but for
dtypes, which has the stacked collectives beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from functional_cases import R
from torch import Tensor

from kernelbench_dist import distributed_collectives as stacked
from kernelbench_dist.distributed_collectives import functional


def run_program(name: str) -> Any:
    return globals()[name](dist.get_rank(), dist.get_world_size())


def leaf(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def gather_weighted(rank: int, world_size: int) -> list[float]:
    x = leaf(rank + 1)
    ((rank + 1) * functional.all_gather(x).sum()).backward()
    return x.grad.tolist()


def reduce_weighted(rank: int, world_size: int) -> list[list[float]]:
    """The sum, and x's gradient for three choices of the ranks' weights."""
    rows = []
    for weight in (1, float(rank == 0), 10**rank):
        x = leaf(rank + 1)
        y = functional.all_reduce(x)
        (weight * y).sum().backward()
        rows.append([y.item(), x.grad.item()])
    return rows


def reduce_same(rank: int, world_size: int) -> list[list[float]]:
    """One loss, y squared, that all ranks compute: x's gradient by op."""
    rows = []
    for op in ("sum", "avg", "prod", "max"):
        x = leaf(rank + 1)
        functional.all_reduce(x, op, loss="same").square().backward()
        rows.append(x.grad.tolist())
    return rows


def move_same(rank: int, world_size: int) -> list[list[float]]:
    x, b, w = leaf(rank + 1), leaf(rank + 1), leaf(2)
    (functional.all_gather(x, loss="same") * torch.tensor([1.0, 10, 100, 1000])).sum().backward()
    functional.broadcast(b, 2, loss="same").square().backward()
    part = (rank + 1) * functional.replicate(w)
    functional.all_reduce(part, loss="same").square().backward()
    return [x.grad.tolist(), b.grad.tolist(), w.grad.tolist()]


def same_twice(rank: int, world_size: int) -> list[list[float]]:
    """The sum over the ranks of the squares of their gradients of one loss, y cubed."""
    rows = []
    for call in (
        lambda x: functional.all_reduce(x, loss="same"),
        lambda x: functional.all_gather(x, loss="same"),
        lambda x: functional.broadcast(x, 1, loss="same"),
    ):
        x = leaf(rank + 1)
        loss = (call(x) ** 3).sum()
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        (second,) = torch.autograd.grad((gradient**2).sum(), x)
        rows.append(second.tolist())
    # The gradient of a replicated value is one value too.
    w = leaf(2)
    loss = (rank + 1) * functional.replicate(w) ** 3
    (gradient,) = torch.autograd.grad(loss.sum(), w, create_graph=True)
    (second,) = torch.autograd.grad((gradient**2).sum(), w)
    return [*rows, second.tolist()]


def uneven_to_all(rank: int, world_size: int) -> list[list[float]] | str:
    """On three ranks. The result, and x's gradient where the result's is the result itself."""
    group = dist.new_group([0, 1, 2])
    if rank == 3:
        return error_of(lambda: functional.all_to_all(leaf(1), group=group))
    x = leaf(*(10.0 * rank + row for row in range(6)))
    splits = [[3, 2, 1], [2, 2, 2], [1, 2, 3]]
    y = functional.all_to_all(
        x, group=group, input_splits=splits[rank], output_splits=[row[rank] for row in splits]
    )
    y.backward(y.detach())
    return [y.tolist(), x.grad.tolist()]


def scalars(rank: int, world_size: int) -> list[Any]:
    x = torch.tensor(123 + 111 * rank)
    return [
        functional.all_gather(x.unsqueeze(0)).tolist(),
        error_of(lambda: functional.all_gather(x)),
    ]


def part_of_gathered(rank: int, world_size: int) -> list[Any]:
    """The loss is of rank 2's part, on rank 0 alone; then of the same on all ranks."""
    rows: list[Any] = []
    for loss, weight in (("sum", float(rank == 0)), ("same", 1.0)):
        x = torch.ones(1, 2, requires_grad=True)
        y = functional.all_gather(x, loss=loss)
        rows += [y.requires_grad]
        (weight * y[2].sum()).backward()
        rows += x.grad.tolist()
    return rows


def subgroup(rank: int, world_size: int) -> list[list[float]]:
    """src, dst and pairs count in the group."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    group = groups[rank % 2]
    x = torch.tensor([rank])
    return [
        functional.broadcast(x, 1, group).tolist(),
        functional.reduce(x, 1, group=group).tolist(),
        functional.gather(x, 1, group=group).tolist(),
        functional.scatter(torch.tensor([rank, rank + 10]), 1, group=group).tolist(),
        functional.permute(x, [(1, 0)], group).tolist(),
        functional.shift(x, group=group).tolist(),
    ]


def dtypes(rank: int, world_size: int) -> dict[str, list[Tensor]]:
    results = {}
    for dtype in DTYPES:
        x = dtype_inputs(dtype)[rank]
        results[str(dtype)] = [
            *(functional.all_reduce(x, op) for op in ops_of(dtype)),
            functional.reduce_scatter(x),
            functional.reduce(x, 1),
            functional.all_gather(x),
            functional.broadcast(x, 1),
            functional.all_to_all(x),
            functional.shift(x),
        ]
    return results


def dtypes_expected() -> dict[str, list[list[Tensor]]]:
    results = {}
    for dtype in DTYPES:
        xs = dtype_inputs(dtype)
        reduced = stacked.reduce(xs, 1)
        rows = [
            *(stacked.all_reduce(xs, op, stacked=True) for op in ops_of(dtype)),
            stacked.reduce_scatter(xs),
            [reduced if r == 1 else torch.zeros_like(reduced) for r in range(R)],
            stacked.all_gather(xs, stacked=True),
            stacked.broadcast(xs, 1, stacked=True),
            stacked.all_to_all(xs),
            stacked.shift(xs),
        ]
        results[str(dtype)] = [[row[r] for row in rows] for r in range(R)]
    return results


DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.complex64,
)  # fmt: skip


def dtype_inputs(dtype: torch.dtype) -> list[Tensor]:
    """Small numbers of few bits, whose sums and products are exact."""
    values = torch.tensor([[1, 2, 0, 1], [0, 2, 0, 3], [1, 4, 0, 1], [0, 2, 0, 1]])
    xs = values.to(dtype)
    return list(xs * (1 + 2j) if dtype.is_complex else xs)


def ops_of(dtype: torch.dtype) -> list[str]:
    ops = ["sum", "prod"]
    if not dtype.is_complex:
        ops += ["min", "max"]
    if dtype.is_floating_point or dtype.is_complex:
        return [*ops, "avg"]
    return [*ops, "band", "bor", "bxor"]


def rounding(rank: int, world_size: int) -> list[Any]:
    """1 + 2^-8 + 2^-8 + 2^-8 in bf16, which holds 8 bits; an average of large fp16; NaN."""
    one = torch.tensor([1.0 if rank == 0 else 2.0**-8], dtype=torch.bfloat16)
    large = torch.tensor([60000.0], dtype=torch.float16)
    gaps = torch.tensor([float(rank), float("nan") if rank == 1 else rank])
    return [
        functional.all_reduce(one).item(),
        functional.reduce_scatter(one.repeat(4)).item(),
        functional.all_reduce(large, "avg").item(),
        functional.all_reduce(gaps, "max").tolist(),
        functional.all_reduce(gaps, "min").tolist(),
    ]


def one_needs_a_gradient(rank: int, world_size: int) -> list[Any]:
    """On rank 1 alone x needs one, and only rank 1 gets one."""
    gradients = []
    for call in (
        lambda x: functional.broadcast(x, 1),
        functional.all_reduce,
        functional.all_gather,
        lambda x: functional.gather(x, 2),
        lambda x: functional.scatter(x if rank == 1 else None, 1),
        functional.shift,
        lambda x: functional.scan(x, exclusive=True),
    ):
        x = torch.ones(4, requires_grad=rank == 1)
        y = call(x)
        assert y.requires_grad
        ((rank + 1) * y).sum().backward()
        gradients.append(x.grad.tolist() if x.grad is not None else None)
    return gradients


def own_memory(rank: int, world_size: int) -> bool:
    """Results are of their own memory, contiguous, and nothing changes the input."""

    def calls(x: Tensor) -> Iterator[Tensor]:
        for op in ("sum", "max"):
            yield functional.all_reduce(x, op)
            yield functional.reduce_scatter(x, 1, op)
            yield functional.reduce(x, 1, op)
            yield functional.scan(x, op)
        yield functional.all_gather(x, 1)
        yield functional.gather(x, 1, 1)
        yield functional.scatter(x, 1, 1)
        yield functional.broadcast(x, 1)
        yield functional.replicate(x)
        yield functional.all_to_all(x, 1, 0)
        yield functional.permute(x, [(0, 0), (1, 2)])
        yield functional.shift(x, 0)

    for x in (torch.ones(4, 4), torch.ones(4, 8)[:, ::2].t()):
        for y in calls(x):
            contiguous = y.is_contiguous()
            y.add_(1)
            if not contiguous or not bool((x == 1).all()):
                return False
    return True


def without_gradients(rank: int, world_size: int) -> list[bool]:
    x = leaf(1, 2, 3, 4)
    with torch.no_grad():
        y = functional.all_reduce(functional.all_gather(functional.reduce_scatter(x, op="max")))
    return [y.requires_grad, y.tolist() == [4, 8, 12, 16]]


def disagreements(rank: int, world_size: int) -> list[str]:
    """Errors that all ranks raise, each of a call in which rank 2 differs."""
    differs = rank == 2
    x, y = torch.ones(4), torch.ones(4, dtype=torch.float64)
    splits = [1, 1, 1, 1]
    with torch.set_grad_enabled(not differs):
        grad_mode = error_of(lambda: functional.all_reduce(torch.ones(4, requires_grad=True)))
    return [
        error_of(lambda: functional.all_reduce(x, "max" if differs else "sum")),
        error_of(lambda: functional.all_reduce(x[:3] if differs else x)),
        error_of(lambda: functional.all_reduce(y if differs else x)),
        error_of(lambda: functional.broadcast(x, src=int(differs))),
        error_of(lambda: functional.permute(x, [(0, 1)] if differs else [(1, 0)])),
        error_of(lambda: functional.scan(x, exclusive=differs)),
        error_of(lambda: (functional.shift if differs else functional.all_reduce)(x)),
        error_of(lambda: functional.all_gather(x[:0] if differs else x.view(2, 2))),
        error_of(lambda: functional.all_to_all(x, input_splits=splits, output_splits=[2, 1, 1, 0])),
        grad_mode,
    ]


def error_of(call: Callable[[], Any]) -> str:
    try:
        return f"no error, but {call()}"
    except (TypeError, ValueError) as e:
        return f"{type(e).__name__}: {e}"
