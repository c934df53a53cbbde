"""What each collective computes, once for all ranks of a group.

Each function gets the calls of all ranks, in rank order, and the order of summation. It runs
without gradients, reads all inputs before it writes an output (they may be the same memory), and
writes through `data`, as a real backend does: the tensors' versions do not count it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernelbench_dist.distributed_collectives._errors import MismatchError
from kernelbench_dist.distributed_collectives.virtual import _sums
from kernelbench_dist.distributed_collectives.virtual._calls import Call


def write(outputs: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    if outputs:
        torch._foreach_copy_([t.data for t in outputs], list(values))


def message(send: Call, receive: Call) -> None:
    pairs = zip(receive.outputs, send.inputs, strict=True)
    write(receive.outputs, [given.data.view(taken.shape) for taken, given in pairs])


def _terms(calls: Sequence[Call]) -> tuple[list[list[Tensor]], str]:
    """What each rank gives, and the operation that reduces it."""
    op = calls[0].op
    rows = [[t.data for t in call.inputs] for call in calls]
    if op == "premul_sum":
        rows = [[t * call.sizes for t in row] for row, call in zip(rows, calls, strict=True)]
        op = "sum"
    return rows, op


def _reduced(
    calls: Sequence[Call], order: str, *, apart: bool = False, to_root: bool = False
) -> list[Tensor]:
    """The reduction of each input over the ranks.

    Unless `apart`, inputs of one dtype are reduced as one flat buffer: where a term's place in it
    decides when it is added, it is the place that it has in a real group.
    """
    rows, op = _terms(calls)
    first = rows[0]
    if len(first) == 1:
        return [_sums.reduce_ranks([row[0] for row in rows], op, order, to_root=to_root)]
    if apart or len({t.dtype for t in first}) > 1:
        return [
            _sums.reduce_ranks(column, op, order, to_root=to_root)
            for column in zip(*rows, strict=True)
        ]
    flat = [torch.cat([t.reshape(-1) for t in row]) for row in rows]
    whole = _sums.reduce_ranks(flat, op, order, to_root=to_root)
    parts = whole.split([t.numel() for t in first])
    return [part.view(t.shape) for part, t in zip(parts, first, strict=True)]


def _reduce_into(
    outputs: Sequence[Sequence[Tensor]],
    calls: Sequence[Call],
    order: str,
    *,
    to_root: bool = False,
) -> None:
    """outputs: where the reduction of each input goes."""
    if order == "rank":
        rows, op = _terms(calls)
        for targets, column in zip(outputs, zip(*rows, strict=True), strict=True):
            _sums.fold_into([t.data for t in targets], column, op)
        return
    values = _reduced(calls, order, to_root=to_root)
    for targets, value in zip(outputs, values, strict=True):
        write(targets, [value] * len(targets))


def barrier(calls: Sequence[Call], order: str) -> None:
    pass


def all_reduce(calls: Sequence[Call], order: str) -> None:
    _reduce_into(list(zip(*(call.outputs for call in calls), strict=True)), calls, order)


def reduce(calls: Sequence[Call], order: str) -> None:
    root = calls[0].root
    assert root is not None
    _reduce_into([[t] for t in calls[root].outputs], calls, order, to_root=True)


def broadcast(calls: Sequence[Call], order: str) -> None:
    root = calls[0].root
    assert root is not None
    for i, value in enumerate(calls[root].inputs):
        others = [call.outputs[i] for r, call in enumerate(calls) if r != root]
        write(others, [value.data] * len(others))


def all_gather(calls: Sequence[Call], order: str) -> None:
    """outputs: R tensors an input, one after the other."""
    size = len(calls)
    _all_gather(calls, [slice(i * size, (i + 1) * size) for i in range(len(calls[0].inputs))])


def all_gather_coalesced(calls: Sequence[Call], order: str) -> None:
    """outputs: one tensor for each input, rank by rank."""
    count = len(calls[0].inputs)
    _all_gather(calls, [slice(i, None, count) for i in range(count)])


def _all_gather(calls: Sequence[Call], places: Sequence[slice]) -> None:
    """places: of each input, where its R outputs are among all."""
    for i, place in enumerate(places):
        values = [call.inputs[i].data for call in calls]
        for call in calls:
            outputs = call.outputs[place]
            for source, (output, value) in enumerate(zip(outputs, values, strict=True)):
                if output.shape != value.shape:
                    raise MismatchError(
                        call.rank.index,
                        f"rank {call.rank.index} has an output of shape {tuple(output.shape)} for "
                        f"what rank {calls[source].rank.index} gives, {tuple(value.shape)}, in "
                        f"{call.what()} at {call.line}",
                    )
        # Copies: an output may be another rank's input.
        values = [value.clone() for value in values]
        for call in calls:
            write(call.outputs[place], values)


def all_gather_single(calls: Sequence[Call], order: str) -> None:
    for i in range(len(calls[0].inputs)):
        joined = torch.cat([call.inputs[i].data.reshape(-1) for call in calls])
        outputs = [call.outputs[i] for call in calls]
        write(outputs, [joined.view(t.shape) for t in outputs])


def gather(calls: Sequence[Call], order: str) -> None:
    root = calls[0].root
    assert root is not None
    _fit(calls[root].outputs, calls, root, [call.inputs[0] for call in calls])
    write(calls[root].outputs, [call.inputs[0].data.clone() for call in calls])


def scatter(calls: Sequence[Call], order: str) -> None:
    root = calls[0].root
    assert root is not None
    outputs = [call.outputs[0] for call in calls]
    _fit(calls[root].inputs, calls, root, outputs)
    write(outputs, [value.data.clone() for value in calls[root].inputs])


def _fit(
    roots: Sequence[Tensor], calls: Sequence[Call], root: int, others: Sequence[Tensor]
) -> None:
    for call, mine, other in zip(calls, roots, others, strict=True):
        if mine.shape != other.shape or mine.dtype != other.dtype:
            raise MismatchError(
                call.rank.index,
                f"rank {call.rank.index} has shape {tuple(other.shape)} {other.dtype}, and the "
                f"root, rank {calls[root].rank.index}, has {tuple(mine.shape)} {mine.dtype} for "
                f"it, in {call.what()} at {call.line}",
            )


def reduce_scatter(calls: Sequence[Call], order: str) -> None:
    """inputs: R tensors an output, one after the other."""
    size = len(calls)
    for i, value in enumerate(_reduced(calls, order, apart=True)):
        output = calls[i % size].outputs[i // size]
        write([output], [value.view(output.shape)])


def reduce_scatter_single(calls: Sequence[Call], order: str) -> None:
    for i, whole in enumerate(_reduced(calls, order, apart=True)):
        parts = whole.reshape(len(calls), -1).unbind()
        outputs = [call.outputs[i] for call in calls]
        write(outputs, [p.view(t.shape) for t, p in zip(outputs, parts, strict=True)])


def all_to_all(calls: Sequence[Call], order: str) -> None:
    for call in calls:
        for source, output in enumerate(call.outputs):
            given = calls[source].inputs[list(calls).index(call)]
            if output.shape != given.shape:
                raise MismatchError(
                    call.rank.index,
                    f"rank {call.rank.index} expects shape {tuple(output.shape)} of rank "
                    f"{calls[source].rank.index}, which gives {tuple(given.shape)}, in "
                    f"{call.what()} at {call.line}",
                )
    values = [[given.data.clone() for given in call.inputs] for call in calls]
    for r, call in enumerate(calls):
        write(call.outputs, [row[r] for row in values])


def all_to_all_single(calls: Sequence[Call], order: str) -> None:
    """sizes: (rows that each rank gets from this one, rows that this one gets from each)."""
    size = len(calls)
    for r, call in enumerate(calls):
        for source in range(size):
            given, expected = calls[source].sizes[0][r], call.sizes[1][source]
            if given != expected:
                raise MismatchError(
                    call.rank.index,
                    f"rank {call.rank.index} expects {expected} rows of rank "
                    f"{calls[source].rank.index}, which gives {given}, in {call.what()} "
                    f"at {call.line}",
                )
    parts = [call.inputs[0].data.split(call.sizes[0]) for call in calls]
    outputs = [call.outputs[0] for call in calls]
    write(outputs, [torch.cat([row[r] for row in parts]) for r in range(size)])


COMPUTE: dict[str, Callable[[Sequence[Call], str], Any]] = {
    f.__name__: f
    for f in (
        barrier,
        all_reduce,
        reduce,
        broadcast,
        all_gather,
        all_gather_coalesced,
        all_gather_single,
        gather,
        scatter,
        reduce_scatter,
        reduce_scatter_single,
        all_to_all,
        all_to_all_single,
    )
}
COMPUTE["new_group"] = COMPUTE["monitored_barrier"] = barrier
