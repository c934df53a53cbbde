"""Reductions over the ranks of a group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from kernelbench_dist.distributed_collectives import _arguments as arguments
from kernelbench_dist.distributed_collectives import _reductions as reductions
from kernelbench_dist.distributed_collectives._reductions import Op
from kernelbench_dist.distributed_collectives.functional import _maps as maps
from kernelbench_dist.distributed_collectives.functional._checks import (
    Loss,
    check_loss,
    check_own_dim,
    own_sizes,
)
from kernelbench_dist.distributed_collectives.functional._meet import (
    meet,
    ranks_of,
)

__all__ = ["all_reduce", "reduce", "reduce_scatter", "scan"]


def all_reduce(
    x: Tensor,
    op: Op = "sum",
    group: dist.ProcessGroup | None = None,
    *,
    loss: Loss = "sum",
    alike: bool = False,
) -> Tensor:
    """Reduce over the ranks, elementwise, for all.

    x has one shape on all ranks, and so has the result. op is "sum", "avg", "prod", "min", "max",
    "band", "bor" or "bxor", or the torch.distributed.ReduceOp member of that name. Sums are the
    backend's, in its order, but fp16 and bf16 are summed in float32. The other ops gather, and fold
    in rank order: min and max pass NaN on.

    Backward, for the gradient g_r on rank r, and g their sum: sum gives every rank g, and avg
    g / R; prod gives a rank g times the product of the others; min and max give g to the rank whose
    value was taken, the smallest one of a tie, and zeros to the others. The bit operations are not
    differentiable. With loss="same" g is this rank's own g_r: no communication for sum and avg.

    Raises:
        ValueError: if the ranks differ in shape, op or loss.
        TypeError: if the dtype does not have the op.

    >>> from kernelbench_dist.distributed_collectives import run_spmd
    >>> def program(loss):
    ...     x = torch.ones(2, requires_grad=True)
    ...     all_reduce(x, loss=loss).sum().backward()
    ...     return x.grad.tolist()
    >>> run_spmd(program, 4, ("sum",))[0], run_spmd(program, 4, ("same",))[0]
    ([4.0, 4.0], [1.0, 1.0])
    """
    fn = "all_reduce"
    arguments.check_tensor(fn, x)
    op = reductions.check_op(fn, op, x.dtype)
    once = check_loss(fn, loss)
    ranks = ranks_of(fn, group)
    met = meet(fn, ranks, x, alike, op=op, loss=loss)
    arguments.check_same_shape(fn, met.tensors)
    x = met.tied(x)

    if _is_sum(op, x.dtype):
        summed = maps.apply(maps.Sum(ranks, once), _wide(x, op))
        return _finish(summed, op, x, ranks).view(x.shape)
    sizes = (x.numel(),) * ranks.size
    rows = maps.apply(maps.Join(ranks, sizes, once), x).view(ranks.size, *x.shape)
    return reductions.fold(rows.unbind(0), op)


def reduce(
    x: Tensor,
    dst: int = 0,
    op: Op = "sum",
    group: dist.ProcessGroup | None = None,
    *,
    alike: bool = False,
) -> Tensor:
    """Reduce over the ranks, elementwise, for rank dst of the group.

    x has one shape on all ranks. The result has it too: the reduction on dst, zeros on the others.
    They take part in backward through their zeros, whose gradient does not matter. op is as in
    all_reduce.

    Backward gives every rank dst's gradient, through the op.

    Raises:
        ValueError: if dst is not a rank of the group, or the ranks differ in shape, dst or op.
        TypeError: if the dtype does not have the op.

    >>> from kernelbench_dist.distributed_collectives import run_spmd
    >>> run_spmd(lambda: reduce(torch.ones(2), dst=1).tolist(), 3)
    [[0.0, 0.0], [3.0, 3.0], [0.0, 0.0]]
    """
    fn = "reduce"
    arguments.check_tensor(fn, x)
    op = reductions.check_op(fn, op, x.dtype)
    ranks = ranks_of(fn, group)
    arguments.check_rank(fn, "dst", dst, ranks.size)
    met = meet(fn, ranks, x, alike, dst=dst, op=op)
    arguments.check_same_shape(fn, met.tensors)
    x = met.tied(x)

    if _is_sum(op, x.dtype):
        summed = maps.apply(maps.ToRank(ranks, dst), _wide(x, op))
        return _finish(summed, op, x, ranks).view(x.shape)
    got = maps.apply(maps.gather_to(dst, (x.numel(),) * ranks.size, ranks), x)
    if ranks.rank == dst:
        return reductions.fold(got.view(ranks.size, *x.shape).unbind(0), op)
    return torch.cat((got, got.new_zeros(x.numel()))).view(x.shape)


def reduce_scatter(
    x: Tensor,
    dim: int = 0,
    op: Op = "sum",
    group: dist.ProcessGroup | None = None,
    *,
    sizes: Sequence[int] | None = None,
    alike: bool = False,
) -> Tensor:
    """Reduce over the ranks, then give rank r part r of dim.

    x has one shape on all ranks. The result is x's shape with dim / R. With sizes, R ints that sum
    to dim, rank r gets sizes[r] of dim. op is as in all_reduce.

    Backward joins the ranks' gradients along dim, on every rank, and continues as all_reduce's.

    Raises:
        ValueError: if dim is not a multiple of R and no sizes are given, if sizes do not sum to it,
            or if the ranks differ in shape or arguments.
        TypeError: if the dtype does not have the op.

    >>> from kernelbench_dist.distributed_collectives import run_spmd
    >>> run_spmd(lambda: reduce_scatter(torch.arange(3), sizes=[1, 2]).tolist(), 2)
    [[0], [2, 4]]
    """
    fn = "reduce_scatter"
    arguments.check_tensor(fn, x)
    op = reductions.check_op(fn, op, x.dtype)
    ranks = ranks_of(fn, group)
    dim = check_own_dim(fn, "dim", dim, x)
    rows = own_sizes(fn, "sizes", sizes, x, dim, ranks)
    met = meet(fn, ranks, x, alike, dim=dim, op=op, sizes=rows)
    arguments.check_same_shape(fn, met.tensors)
    x = met.tied(x).movedim(dim, 0)

    shape = (rows[ranks.rank], *x.shape[1:])
    counts = tuple(n * x.shape[1:].numel() for n in rows)
    if _is_sum(op, x.dtype):
        summed = maps.apply(maps.SumParts(ranks, counts), _wide(x, op))
        part = _finish(summed, op, x, ranks)
    else:
        exchange = maps.Exchange(ranks, counts, (counts[ranks.rank],) * ranks.size)
        part = reductions.fold(maps.apply(exchange, x).view(ranks.size, -1).unbind(0), op)
    return part.view(shape).movedim(0, dim).contiguous()


def scan(
    x: Tensor,
    op: Op = "sum",
    exclusive: bool = False,
    group: dist.ProcessGroup | None = None,
    *,
    alike: bool = False,
) -> Tensor:
    """Give rank r the reduction over ranks 0 to r.

    x has one shape on all ranks, and so has the result. With exclusive=True rank r gets the
    reduction over ranks 0 to r - 1, and rank 0 the op's identity. op is as in all_reduce, but for
    avg. All ops gather, and fold in rank order.

    Backward is the scan from the last rank back: for a sum, rank r gets the gradients of ranks r
    to R - 1, or of r + 1 to R - 1 if exclusive.

    Raises:
        ValueError: if op is avg, or the ranks differ in shape, op or exclusive.
        TypeError: if the dtype does not have the op.

    >>> from kernelbench_dist.distributed_collectives import get_rank, run_spmd
    >>> run_spmd(lambda: scan(torch.tensor(get_rank() + 1)).item(), 4)
    [1, 3, 6, 10]
    """
    fn = "scan"
    arguments.check_tensor(fn, x)
    op = reductions.check_op(fn, op, x.dtype, [name for name in reductions.OPS if name != "avg"])
    arguments.check_bool(fn, "exclusive", exclusive)
    ranks = ranks_of(fn, group)
    met = meet(fn, ranks, x, alike, op=op, exclusive=exclusive)
    arguments.check_same_shape(fn, met.tensors)

    joined = maps.apply(maps.Join(ranks, (x.numel(),) * ranks.size), met.tied(x))
    rows = joined.view(ranks.size, *x.shape)
    before = ranks.rank if exclusive else ranks.rank + 1
    if before == 0:
        return reductions.identity(rows[0], op)
    # A copy, so that rank 0's result is not a part of all that was gathered.
    return reductions.fold(rows[:before].unbind(0), op).clone()


def _is_sum(op: str, dtype: torch.dtype) -> bool:
    """Whether the backend reduces. Else the ranks' tensors are gathered, and folded here."""
    return op in ("sum", "avg") and maps.sums_natively(dtype)


def _wide(x: Tensor, op: str) -> Tensor:
    # An average is rounded once, after the division.
    return x.to(maps.WIDE.get(x.dtype, x.dtype)) if op == "avg" else x


def _finish(summed: Tensor, op: str, x: Tensor, ranks: maps.Ranks) -> Tensor:
    if op == "avg":
        # By a tensor: on a GPU, torch multiplies with the reciprocal of a number.
        summed = summed / torch.full((), ranks.size, dtype=summed.dtype, device=summed.device)
    return summed.to(x.dtype)
