"""Wrong calls, each of which raises within one rank or ends the run, and what gloo does instead."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from conformance import TORCH


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
RAISES: list[Callable[[], None]] = [
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
TAKES: list[tuple[Callable[[], None], str]] = [
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
    TAKES.append((all_to_all_of_one_row_too_many, "gloo cuts within a row"))

# gloo waits for ever, or the process ends.
HANGS: list[Callable[[], None]] = [other_source, receive_of_too_few, send_without_receive]
