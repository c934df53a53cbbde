"""Programs on R ranks that are wrong, and what the error is to say: data of test_spmd_wrong.

The lines that an error must name end with "# here": its message names them, or, where a rank failed
by itself, the traceback of what it raised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from kernelbench_dist.distributed_collectives._errors import (
    DeadlockError,
    MismatchError,
    RankError,
)


@dataclass(frozen=True)
class Wrong:
    program: Callable[[], Any]
    error: type[RankError]
    rank: int  # that the error names where ranks run in rank order
    world_size: int
    says: tuple[str, ...]
    watchdog_s: float

    def __str__(self) -> str:
        return self.program.__name__


WRONG: list[Wrong] = []


def wrong(
    error: type[RankError],
    rank: int,
    *says: str,
    world_size: int = 2,
    watchdog_s: float = 30.0,
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def register(program: Callable[[], Any]) -> Callable[[], Any]:
        WRONG.append(Wrong(program, error, rank, world_size, says, watchdog_s))
        return program

    return register


def pick(*values: Any) -> Any:
    """The value for this rank."""
    return values[dist.get_rank()]


# Ranks that do not agree in a collective


@wrong(MismatchError, 1, "shape: (3,) and (4,)", "call 1 of the default group", "all_reduce")
def shapes_differ():
    dist.all_reduce(torch.ones(pick(3, 4)))  # here


@wrong(MismatchError, 1, "shape: (2, 3) and (3, 2)", "all_reduce")
def shapes_differ_with_equal_counts():
    dist.all_reduce(torch.ones(pick((2, 3), (3, 2))))  # here


@wrong(MismatchError, 1, "dtype: float32 and float64", "broadcast", "call 1")
def dtypes_differ():
    dist.broadcast(torch.ones(3, dtype=pick(torch.float32, torch.float64)), src=0)  # here


@wrong(MismatchError, 1, "op: sum and max", "all_reduce", "call 1")
def ops_differ():
    dist.all_reduce(torch.ones(3), op=pick(dist.ReduceOp.SUM, dist.ReduceOp.MAX))  # here


@wrong(MismatchError, 1, "source: 0 and 1", "broadcast", "call 1")
def broadcast_sources_differ():
    dist.broadcast(torch.ones(3), src=dist.get_rank())  # here


@wrong(MismatchError, 2, "destination: 0 and 1", "reduce(", world_size=3)
def reduce_destinations_differ():
    dist.reduce(torch.ones(3), dst=pick(0, 0, 1))  # here


@wrong(MismatchError, 1, "operations differ: all_reduce and broadcast", "call 1")
def calls_in_another_order():
    x, y = torch.ones(2), torch.zeros(2)
    if dist.get_rank() == 0:
        dist.all_reduce(x)  # here
        dist.broadcast(y, src=0)
    else:
        dist.broadcast(y, src=0)  # here
        dist.all_reduce(x)


@wrong(MismatchError, 0, "operations differ: all_reduce and all_gather", "call 2")
def one_collective_for_another():
    x = torch.ones(2)
    dist.barrier()
    if dist.get_rank() == 0:
        dist.all_gather([torch.empty(2), torch.empty(2)], x)  # here
    else:
        dist.all_reduce(x)  # here


@wrong(MismatchError, 0, "call 2", "barrier")
def a_barrier_that_one_rank_forgets():
    x = torch.ones(2)
    dist.all_reduce(x)
    if dist.get_rank() == 0:
        dist.barrier()  # here
    dist.all_reduce(x)  # here


@wrong(MismatchError, 1, "shape (2,)", "(3,)", "all_gather", "call 1")
def an_output_of_all_gather_of_another_shape():
    outputs = [torch.empty(2), pick(torch.empty(3), torch.empty(2))]
    dist.all_gather(outputs, torch.ones(pick(2, 3)))  # here


@wrong(MismatchError, 1, "(2,)", "(3,)", "scatter", "call 1", "root")
def a_part_of_scatter_of_another_shape():
    parts = [torch.ones(2), torch.ones(3)] if dist.get_rank() == 0 else None
    dist.scatter(torch.empty(2), parts, src=0)  # here


@wrong(MismatchError, 1, "(2,)", "(3,)", "gather", "call 1")
def a_part_of_gather_of_another_shape():
    parts = [torch.empty(2), torch.empty(2)] if dist.get_rank() == 0 else None
    dist.gather(torch.ones(pick(2, 3)), parts, dst=0)  # here


@wrong(MismatchError, 0, "expects 2 rows of rank 1", "gives 1", "all_to_all_single", "call 1")
def splits_that_do_not_fit():
    out, given = pick(([1, 2], [1, 2]), ([2, 1], [1, 2]))
    dist.all_to_all_single(torch.empty(3), torch.ones(3), out, given)  # here


@wrong(MismatchError, 0, "expects shape (2,) of rank 1", "gives (1,)", "all_to_all")
def parts_of_all_to_all_that_do_not_fit():
    outputs = pick([torch.empty(1), torch.empty(2)], [torch.empty(1), torch.empty(1)])
    dist.all_to_all(outputs, [torch.ones(1), torch.ones(1)])  # here


@wrong(MismatchError, 0, "all_gather and all_reduce", "call 2")
def object_collective_beside_a_tensor():
    dist.barrier()
    if dist.get_rank() == 1:
        dist.all_gather_object([None, None], {"a": 1})  # here
    else:
        dist.all_reduce(torch.ones(2))  # here


# Ranks that never meet


@wrong(
    DeadlockError, 0, "rank 1: returned", "all_reduce(shape (3,), dtype float32", "op sum",
    "call 1 of the default group", "not called yet by rank 1",
)  # fmt: skip
def a_rank_that_returns_early():
    if dist.get_rank() == 1:
        return
    dist.all_reduce(torch.ones(3))  # here


@wrong(DeadlockError, 0, "call 4", "rank 1: returned", "not called yet by ranks 1, 2", world_size=3)
def a_loop_that_is_longer_on_one_rank():
    for _ in range(pick(4, 3, 3)):
        dist.all_reduce(torch.ones(2))  # here


@wrong(DeadlockError, 0, "send to rank 1(shape (2,)", "rank 1: returned")
def a_send_without_a_receive():
    if dist.get_rank() == 0:
        dist.send(torch.ones(2), dst=1)  # here


@wrong(DeadlockError, 1, "recv from rank 0(shape (2,)", "rank 0: returned")
def a_receive_without_a_send():
    if dist.get_rank() == 1:
        dist.recv(torch.ones(2), src=0)  # here


@wrong(DeadlockError, 1, "recv from any rank(shape (2,)", "rank 0: returned")
def a_receive_from_any_rank_without_a_send():
    if dist.get_rank() == 1:
        dist.recv(torch.ones(2))  # here


@wrong(
    DeadlockError, 0, "rank 0: send to rank 1", "rank 1: send to rank 2", "rank 2: send to rank 0",
    world_size=3,
)  # fmt: skip
def a_ring_of_blocking_sends():
    rank = dist.get_rank()
    dist.send(torch.ones(2), dst=(rank + 1) % 3)  # here
    dist.recv(torch.ones(2), src=(rank - 1) % 3)


@wrong(DeadlockError, 0, "rank 0: recv from rank 1", "rank 1: recv from rank 0")
def both_receive_before_they_send():
    peer = 1 - dist.get_rank()
    dist.recv(torch.ones(2), src=peer)  # here
    dist.send(torch.ones(2), dst=peer)


@wrong(DeadlockError, 0, "rank 0: recv from rank 1", "rank 1: barrier")
def a_receive_before_a_barrier_and_its_send_after():
    if dist.get_rank() == 0:
        dist.recv(torch.ones(2), src=1)  # here
        dist.barrier()
    else:
        dist.barrier()  # here
        dist.send(torch.ones(2), dst=0)


@wrong(DeadlockError, 0, "tag 1", "tag 2", "send to rank 1", "recv from rank 0")
def tags_that_differ():
    if dist.get_rank() == 0:
        dist.send(torch.ones(2), dst=1, tag=1)  # here
    else:
        dist.recv(torch.ones(2), src=0, tag=2)  # here


@wrong(DeadlockError, 0, "rank 0: recv from rank 2", "rank 2: send to rank 1", world_size=3)
def a_message_to_the_wrong_rank():
    if dist.get_rank() == 0:
        dist.recv(torch.ones(2), src=2)  # here
    elif dist.get_rank() == 2:
        dist.send(torch.ones(2), dst=1)  # here


@wrong(MismatchError, 0, "send to rank 1(shape (4,)", "recv from rank 0(shape (3,)")
def a_receive_of_another_shape():
    if dist.get_rank() == 0:
        dist.send(torch.ones(4), dst=1)  # here
    else:
        dist.recv(torch.ones(3), src=0)  # here


@wrong(MismatchError, 0, "dtype float64", "dtype float32", "send to rank 1", "recv from rank 0")
def a_receive_of_another_dtype():
    if dist.get_rank() == 0:
        dist.send(torch.ones(3, dtype=torch.float64), dst=1)  # here
    else:
        dist.recv(torch.ones(3), src=0)  # here


@wrong(DeadlockError, 0, "recv from rank 1(shape (2,)", "rank 1: returned")
def a_batch_without_its_partner():
    if dist.get_rank() == 0:
        x = torch.ones(2)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 1)]):  # here
            work.wait()


@wrong(DeadlockError, 0, "nobody met", "rank 0: all_reduce(shape (2,)", "call 1")
def work_that_is_never_waited_for_and_never_met():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(2), async_op=True)  # here


@wrong(DeadlockError, 0, "nobody met", "rank 0: send to rank 1")
def an_isend_that_nobody_receives():
    if dist.get_rank() == 0:
        dist.isend(torch.ones(2), dst=1)  # here


@wrong(DeadlockError, 0, "rank 0: all_reduce", "rank 1: recv from rank 0", "call 1")
def works_awaited_crosswise():
    # Rank 1 waits for what rank 0 sends only after its collective.
    x, y = torch.ones(2), torch.ones(2)
    if dist.get_rank() == 0:
        dist.all_reduce(x)  # here
        dist.send(y, dst=1)
    else:
        received = dist.irecv(y, src=0)  # here
        received.wait()
        dist.all_reduce(x)


# Groups


@wrong(
    DeadlockError, 0, "call 1 of group 1 of ranks 0, 1", "call 1 of group 2 of ranks 0, 1",
    "rank 0: all_reduce(shape (1,)", "rank 1: all_reduce(shape (2,)",
)  # fmt: skip
def two_groups_in_crossed_order():
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    xs = [torch.ones(1), torch.ones(2)]
    for i in pick((0, 1), (1, 0)):
        dist.all_reduce(xs[i], group=groups[i])  # here


@wrong(MismatchError, 1, "new_group", "ranks 0, 1", "ranks 0, 2", world_size=3)
def groups_made_in_another_order():
    for ranks in pick(([0, 1], [0, 2]), ([0, 2], [0, 1]), ([0, 1], [0, 2])):
        dist.new_group(ranks)  # here


@wrong(MismatchError, 1, "new_group", "ranks 0, 1", world_size=3)
def groups_made_with_other_ranks():
    dist.new_group(pick([0, 1], [0, 1, 2], [0, 1]))  # here


@wrong(DeadlockError, 0, "new_group", "ranks 0, 1", "rank 2", world_size=3)
def a_group_that_only_its_own_ranks_make():
    if dist.get_rank() != 2:
        dist.all_reduce(torch.ones(1), group=dist.new_group([0, 1]))  # here


@wrong(RankError, 2, "all_reduce", "not in", "0, 1", world_size=3)
def a_collective_on_a_group_that_the_rank_is_not_in():
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(2), group=group)  # here


@wrong(DeadlockError, 0, "of ranks 0, 1", "all_reduce", "not called yet by rank 1", world_size=3)
def a_group_of_which_one_rank_uses_another():
    small, large = dist.new_group([0, 1]), dist.new_group([0, 1, 2])
    dist.all_reduce(torch.ones(1), group=pick(small, large, large))  # here


@wrong(RankError, 0, "2", "group", world_size=3)
def a_root_outside_of_the_group():
    group = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        dist.broadcast(torch.ones(1), src=2, group=group)  # here


@wrong(RankError, 0, "ValueError")
def a_send_to_itself():
    dist.send(torch.ones(1), dst=dist.get_rank())  # here


@wrong(RankError, 0, "ValueError", "0, 0")
def a_group_that_names_a_rank_twice():
    dist.new_group([0, 0])  # here


@wrong(MismatchError, 1, "number of tensors: 1 and 2", "all_reduce", "call 1")
def one_tensor_more():
    xs = [torch.ones(2), torch.ones(2)]
    with dist._coalescing_manager():  # here
        for x in xs[: dist.get_rank() + 1]:
            dist.all_reduce(x)


@wrong(MismatchError, 1, "strides: contiguous and (1, 2)", "broadcast", "call 1")
def strides_differ():
    x = torch.ones(2, 2)
    dist.broadcast(pick(x, x.t()), src=0)  # here


@wrong(MismatchError, 1, "shape: (3,) and (2,)", "all_gather_single", "call 1")
def a_call_of_a_deprecated_name():
    dist.all_gather_into_tensor(torch.empty(pick(6, 4)), torch.ones(pick(3, 2)))  # here


@wrong(MismatchError, 0, "as many elements in another shape are refused", "(2, 3)", "(6,)")
def a_receive_of_as_many_elements_in_another_shape():
    if dist.get_rank() == 0:
        dist.send(torch.ones(2, 3), dst=1)  # here
    else:
        dist.recv(torch.ones(6), src=0)  # here


# Memory that calls in flight share


@wrong(RankError, 0, "writes memory in recv from rank 1(", "send to rank 1(", "not done")
def a_tensor_that_is_sent_and_received_into_at_once():
    x, peer = torch.ones(2), 1 - dist.get_rank()
    works = [dist.isend(x, peer)]  # here
    works.append(dist.irecv(x, peer))  # here
    for work in works:
        work.wait()


@wrong(RankError, 0, "reads memory in send to rank 1(", "recv from rank 1(", "not done")
def a_tensor_that_is_sent_before_it_is_received():
    x, peer = torch.ones(4), 1 - dist.get_rank()
    works = [dist.irecv(x[1:], peer)]  # here
    works.append(dist.isend(x[:2], peer))  # here
    for work in works:
        work.wait()


@wrong(RankError, 0, "all_reduce(", "broadcast(", "group 1 of ranks 0, 1", "not done")
def a_tensor_that_two_groups_change_at_once():
    x, other = torch.ones(2), dist.new_group([0, 1])
    works = [dist.all_reduce(x, async_op=True)]  # here
    works.append(dist.broadcast(x, 1, group=other, async_op=True))  # here
    for work in works:
        work.wait()


@wrong(RankError, 0, "all_gather(", "two of its outputs share memory")
def one_output_for_two():
    y = torch.empty(2)
    dist.all_gather([y, y], torch.ones(2))  # here


@wrong(RankError, 0, "all_reduce(", "two of its outputs share memory")
def coalesced_tensors_that_overlap():
    x = torch.ones(3)
    dist.all_reduce_coalesced([x[:2], x[1:]])  # here
