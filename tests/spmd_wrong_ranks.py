"""More wrong programs: ranks that die, that wait outside of their group, or give wrong tensors."""

from __future__ import annotations

import os
import queue
import threading
import time

import torch
import torch.distributed as dist
from spmd_wrong import pick, wrong

from kernelbench_dist.distributed_collectives._errors import (
    DeadlockError,
    MismatchError,
    RankError,
)

_SHARED = torch.ones(3)


# Ranks that die


@wrong(RankError, 1, "rank 1 of 3 failed: ZeroDivisionError", world_size=3)
def an_exception_in_one_rank():
    if dist.get_rank() == 1:
        _ = 1 // 0  # here
    dist.barrier()


@wrong(RankError, 1, "rank 1 of 2 failed: KeyError: 'lost'")
def an_exception_where_others_wait_for_this_rank():
    x = torch.ones(2)
    if dist.get_rank() == 0:
        dist.recv(x, src=1)
    raise KeyError("lost")  # here


@wrong(RankError, 1, "rank 1 of 2 failed: SystemExit: 3")
def a_rank_that_exits():
    if dist.get_rank() == 1:
        raise SystemExit(3)  # here
    dist.barrier()


@wrong(RankError, 1, "failed: RuntimeError: in backward")
def an_exception_in_backward():
    def fail(grad):
        if dist.get_rank() == 1:
            raise RuntimeError("in backward")  # here
        dist.all_reduce(grad.clone())

    x = torch.ones(2, requires_grad=True)
    x.register_hook(fail)
    x.sum().backward()


@wrong(DeadlockError, 0, "rank 1: returned", "barrier", "call 1")
def a_rank_that_leaves_its_group():
    if dist.get_rank() == 1:
        dist.destroy_process_group()
        return
    dist.barrier()  # here


@wrong(DeadlockError, 0, "rank 1: returned", "barrier")
def a_rank_that_hides_its_exception():
    try:
        if dist.get_rank() == 1:
            raise ValueError
        dist.barrier()  # here
    except Exception:
        return


@wrong(RankError, 1, "rank 1 of 2 failed: ValueError: first")
def a_rank_that_catches_everything_goes_on_for_a_while():
    if dist.get_rank() == 1:
        raise ValueError("first")  # here
    for _ in range(100):
        try:
            dist.barrier()
        except BaseException:
            time.sleep(0)


@wrong(RankError, 0, "barrier", "a thread of rank 0's program uses its group")
def a_thread_that_uses_the_group():
    failed = []

    def communicate():
        try:
            dist.barrier()  # here
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=communicate)
    thread.start()
    thread.join()
    raise failed[0]


@wrong(RankError, 1, "rank 1 of 2 failed", "params[0]", "sizes [4, 2]")
def models_that_differ():
    model = torch.nn.Linear(2, pick(3, 4))
    torch.nn.parallel.DistributedDataParallel(model)  # here


# Ranks that wait outside of their group


@wrong(DeadlockError, 0, "waits in the store for 'never'", "rank 1: returned")
def a_key_that_nobody_sets():
    if dist.get_rank() == 0:
        dist.distributed_c10d._get_default_store().wait(["never"])  # here


@wrong(
    DeadlockError, 0, "rank 0 has done nothing for 0.2 s", "rank 1: barrier(), call 2",
    watchdog_s=0.2,
)  # fmt: skip
def a_sleep_outside_of_the_group():
    dist.barrier()
    if dist.get_rank() == 0:
        time.sleep(1)
    dist.barrier()


@wrong(
    DeadlockError, 1, "rank 1 has done nothing for 0.2 s", "queue.Queue().get",
    "rank 0: barrier(), call 1", watchdog_s=0.2,
)  # fmt: skip
def a_queue_that_stays_empty():
    if dist.get_rank() == 1:
        queue.Queue().get(timeout=1)
    dist.barrier()


@wrong(
    DeadlockError,
    1,
    "rank 1",
    "a_file_that_never_comes",
    "rank 0: barrier(), call 1",
    watchdog_s=0.2,
)
def a_file_that_never_comes():
    while dist.get_rank() == 1 and not os.path.exists("/never"):
        time.sleep(0.01)
    dist.barrier()


@wrong(DeadlockError, 0, "rank 0", "all_reduce", "rank 1: returned", watchdog_s=0.2)
def a_polling_loop_that_never_ends():
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(2), async_op=True)  # here
        while not work.is_completed():
            pass


@wrong(DeadlockError, 0, "rank 0", "'never'", "rank 1: returned", watchdog_s=0.2)
def a_loop_over_the_store_that_never_ends():
    store = dist.distributed_c10d._get_default_store()
    while dist.get_rank() == 0 and not store.check(["never"]):  # here
        pass


# What real backends take, and get wrong


@wrong(MismatchError, 1, "same memory", "all_reduce", "call 1")
def results_of_two_ranks_in_the_same_memory():
    dist.all_reduce(_SHARED)  # here


@wrong(MismatchError, 0, "changed a tensor of its all_reduce", "call 1", "wait")
def a_tensor_changed_while_in_flight():
    x = torch.ones(3)
    work = dist.all_reduce(x, async_op=True)  # here
    x.add_(1)
    work.wait()


@wrong(MismatchError, 1, "changed a tensor of its all_reduce", "call 1", "wait")
def a_tensor_changed_by_the_rank_that_called_last():
    x = torch.ones(3)
    work = dist.all_reduce(x, async_op=True)  # here
    if dist.get_rank() == 1:
        x.add_(1)
    work.wait()


@wrong(MismatchError, 1, "same memory", "recv from rank 0")
def a_message_received_in_the_senders_memory():
    if dist.get_rank() == 0:
        dist.send(_SHARED, dst=1)  # here
    else:
        dist.recv(_SHARED, src=0)  # here


@wrong(MismatchError, 1, "same memory", "all_reduce", "call 1")
def results_of_two_ranks_that_overlap():
    first = dist.get_rank()
    dist.all_reduce(_SHARED[first : first + 2])  # here


@wrong(MismatchError, 0, "changed a tensor of its send to rank 1", "wait")
def a_message_changed_while_in_flight():
    x = torch.ones(3)
    if dist.get_rank() == 0:
        work = dist.isend(x, dst=1)  # here
        x.zero_()
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        dist.recv(x, src=0)


@wrong(RankError, 0, "all_reduce", "(2, 2)", "strides (3, 1)")
def strided_tensors():
    dist.all_reduce(torch.ones(2, 3)[:, :2])  # here


@wrong(RankError, 0, "all_reduce", "(4,)", "strides (0,)")
def expanded_tensors():
    dist.all_reduce(torch.ones(1).expand(4))  # here


@wrong(RankError, 0, "all_to_all_single", "3 rows", "2 ranks")
def rows_that_the_ranks_do_not_share_evenly():
    dist.all_to_all_single(torch.empty(3), torch.ones(3))  # here


@wrong(RankError, 0, "all_to_all_single", "memory")
def all_to_all_in_place():
    x = torch.ones(2)
    dist.all_to_all_single(x, x)  # here


@wrong(RankError, 0, "all_reduce", "avg", "int64")
def the_average_of_integers():
    dist.all_reduce(torch.ones(2, dtype=torch.int64), op=dist.ReduceOp.AVG)  # here


@wrong(RankError, 0, "all_gather", "1 output tensors", "2, one a rank")
def too_few_outputs():
    dist.all_gather([torch.empty(2)], torch.ones(2))  # here


@wrong(RankError, 0, "reduce_scatter_tensor", "(3,)", "(2,)", "2 ranks")
def an_input_of_reduce_scatter_that_is_too_short():
    dist.reduce_scatter_tensor(torch.empty(2), torch.ones(3))  # here
