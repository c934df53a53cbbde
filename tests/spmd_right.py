"""Programs on R ranks that are right, and what each rank is to return: data of test_spmd_right.

Sums are of small whole numbers, and so exact, unless plain torch computes the expected values.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Right:
    program: Callable[[], Any]
    world_size: int
    expected: Callable[[], list[Any]]  # a rank

    def __str__(self) -> str:
        return self.program.__name__


RIGHT: list[Right] = []


def right(*expected: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a program with what each of its ranks returns, or a function that works it out."""

    def register(program: Callable[[], Any]) -> Callable[[], Any]:
        if callable(expected[-1]):
            world_size, work_out = expected
        else:
            world_size, work_out = len(expected), lambda: list(expected)
        RIGHT.append(Right(program, world_size, work_out))
        return program

    return register


def me() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def number(value: float = 0.0) -> torch.Tensor:
    return torch.tensor([float(value)])


# Rings


@right(6, 6, 6, 6)
def a_ring_that_adds_up_what_goes_round():
    rank, size = me()
    total, passing = rank, number(rank)
    for _ in range(size - 1):
        arriving = number()
        works = [dist.isend(passing, (rank + 1) % size), dist.irecv(arriving, (rank - 1) % size)]
        for work in works:
            work.wait()
        total += arriving.item()
        passing = arriving
    return total


@right(4, 0, 1, 2, 3)
def a_ring_of_blocking_sends_in_which_rank_0_receives_first():
    rank, size = me()
    arriving = number()
    if rank == 0:
        dist.recv(arriving, size - 1)
    dist.send(number(rank), (rank + 1) % size)
    if rank > 0:
        dist.recv(arriving, rank - 1)
    return arriving.item()


@right(7, 2, 4, 7)
def a_token_on_its_way_round():
    rank, size = me()
    token = number(1)
    if rank > 0:
        dist.recv(token, rank - 1)
    token += rank
    dist.send(token, (rank + 1) % size)
    if rank == 0:
        dist.recv(token, size - 1)
    return token.item()


@right(4, lambda: [[4.0 * i + 6 for i in range(8)]] * 4)
def an_all_reduce_made_of_a_ring():
    # Element i of rank r is i + r. First the chunks are added up, then passed round.
    rank, size = me()
    chunks = list(torch.arange(8.0).add(rank).chunk(size))
    for phase in range(2):
        for step in range(size - 1):
            give, get = (rank - step + phase) % size, (rank - step - 1 + phase) % size
            arriving = torch.empty(2)
            operations = [
                dist.P2POp(dist.isend, chunks[give], (rank + 1) % size),
                dist.P2POp(dist.irecv, arriving, (rank - 1) % size),
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            chunks[get] = arriving if phase else chunks[get] + arriving
    return torch.cat(chunks).tolist()


# Trees


@right(7, 7, 7, 7, 7, 7)
def a_broadcast_along_a_tree():
    rank, size = me()
    x = number(7 if rank == 0 else 0)
    reach = 1
    while reach < size:
        if rank < reach and rank + reach < size:
            dist.send(x, rank + reach)
        elif reach <= rank < 2 * reach:
            dist.recv(x, rank - reach)
        reach *= 2
    return x.item()


@right(21, 1, 5, 3, 15, 5, 6)
def a_sum_up_a_tree():
    rank, size = me()
    x, step = number(rank), 1
    while step < size:
        if rank % (2 * step):
            dist.send(x, rank - step)
            break
        if rank + step < size:
            other = number()
            dist.recv(other, rank + step)
            x += other
        step *= 2
    return x.item()


@right(28, 28, 28, 28, 28, 28, 28, 28)
def a_sum_by_doubling():
    rank, size = me()
    x, step = number(rank), 1
    while step < size:
        other, given = number(), x.clone()
        works = [dist.irecv(other, rank ^ step), dist.isend(given, rank ^ step)]
        for work in works:
            work.wait()
        x, step = x + other, 2 * step
    return x.item()


# Pipelines and neighbours


@right([], [], [6, 7, 8, 9])
def a_pipeline():
    # Stage r adds r + 1 to each of four micro-batches.
    rank, size = me()
    done = []
    for batch in range(4):
        x = number(batch)
        if rank > 0:
            dist.recv(x, rank - 1)
        x += rank + 1
        if rank < size - 1:
            dist.send(x, rank + 1)
        else:
            done.append(x.item())
    return done


@right(0, 1, 3, 6, 10)
def a_running_sum_down_a_chain():
    rank, size = me()
    before = number()
    if rank > 0:
        dist.recv(before, rank - 1)
    total = before + rank
    if rank < size - 1:
        dist.send(total, rank + 1)
    return total.item()


@right(1, 2, 4, 5, 8)
def a_sort_by_exchanges_between_neighbours():
    rank, size = me()
    mine = number((5, 8, 1, 4, 2)[rank])
    for step in range(size):
        peer = rank + 1 if (rank + step) % 2 == 0 else rank - 1
        if not 0 <= peer < size:
            continue
        other, given = number(), mine.clone()
        if rank < peer:
            dist.send(given, peer)
            dist.recv(other, peer)
        else:
            dist.recv(other, peer)
            dist.send(given, peer)
        mine = min(mine, other) if rank < peer else max(mine, other)
    return mine.item()


def _smoothed() -> list[Any]:
    x = torch.arange(12.0) ** 2
    for _ in range(3):
        x = (x.roll(1) + x + x.roll(-1)) % 1000
    return x.view(4, 3).tolist()


@right(4, _smoothed)
def neighbours_that_exchange_their_edges():
    rank, size = me()
    x = (torch.arange(12.0) ** 2).view(size, 3)[rank]
    left, right_ = (rank - 1) % size, (rank + 1) % size
    for step in range(3):
        before, after = number(), number()
        works = [
            dist.irecv(before, left, tag=2 * step),
            dist.irecv(after, right_, tag=2 * step + 1),
            dist.isend(x[:1].clone(), left, tag=2 * step + 1),
            dist.isend(x[-1:].clone(), right_, tag=2 * step),
        ]
        for work in reversed(works):
            work.wait()
        wide = torch.cat([before, x, after])
        x = (wide[:-2] + wide[1:-1] + wide[2:]) % 1000
    return x.tolist()


# Asynchronous work


@right([6, 4, 0], [6, 4, 0], [6, 4, 0])
def works_awaited_in_the_reverse_order():
    rank, _ = me()
    xs = [number(2 * rank), number(rank + 2), number(rank)]
    ops = [dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN]
    works = [dist.all_reduce(x, op, async_op=True) for x, op in zip(xs, ops, strict=True)]
    for work in reversed(works):
        work.wait()
    return [x.item() for x in xs]


@right([3, 6], [3, 6], [3, 6])
def works_awaited_in_another_order_on_each_rank():
    rank, _ = me()
    xs = [number(rank), number(2 * rank)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    for i in (0, 1) if rank % 2 else (1, 0):
        works[i].wait()
    return [x.item() for x in xs]


@right([1, 2], [1, 2])
def two_groups_called_in_crossed_order_and_awaited_later():
    rank, _ = me()
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    xs = [number(rank), number(2 * rank)]
    works = [dist.all_reduce(xs[i], group=groups[i], async_op=True) for i in (rank, 1 - rank)]
    for work in works:
        work.wait()
    return [x.item() for x in xs]


@right(6, 6, 6, 6)
def a_loop_that_asks_whether_work_is_done():
    rank, _ = me()
    x = number(rank)
    for _ in range(3 - rank):  # some come late
        time.sleep(0)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    return x.item()


@right(12, 12, 12, 12)
def a_future_with_a_callback():
    rank, _ = me()
    future = dist.all_reduce(number(rank), async_op=True).get_future()
    return future.then(lambda done: done.value()[0] * 2).wait().item()


@right([0, 10, 20], [1, 11, 21], [2, 12, 22])
def messages_between_all_pairs_in_one_batch():
    rank, size = me()
    arriving = [number() for _ in range(size)]
    arriving[rank] = number(10 * rank + rank)
    operations = []
    for peer in range(size):
        if peer != rank:
            operations.append(dist.P2POp(dist.isend, number(10 * rank + peer), peer))
            operations.append(dist.P2POp(dist.irecv, arriving[peer], peer))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return [x.item() for x in arriving]


@right([], [2, 1])
def messages_told_apart_by_their_tags():
    rank, _ = me()
    if rank == 0:
        works = [dist.isend(number(tag), 1, tag=tag) for tag in (1, 2)]
        for work in works:
            work.wait()
        return []
    second, first = number(), number()
    dist.recv(second, 0, tag=2)
    dist.recv(first, 0, tag=1)
    return [second.item(), first.item()]


@right([], [0, 1, 2, 3])
def messages_that_do_not_overtake_each_other():
    rank, _ = me()
    xs = [number(i if rank == 0 else -1) for i in range(4)]
    works = [dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0) for x in xs]
    for work in reversed(works):
        work.wait()
    return [] if rank == 0 else [x.item() for x in xs]
