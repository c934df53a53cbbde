"""More right programs: groups, all kinds of collectives, any source, stores, objects, gradients."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from spmd_right import me, number, right
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

# Groups


@right([1, 4], [1, 5], [5, 4], [5, 5])
def a_grid_of_rows_and_columns():
    # Ranks 0 1 / 2 3: the sum of the ranks in a row, and 2 more than the largest in a column.
    rank, _ = me()
    rows = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    columns = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    x, y = number(rank), number(rank + 2)
    dist.all_reduce(x, group=rows[rank // 2])
    dist.all_reduce(y, dist.ReduceOp.MAX, group=columns[rank % 2])
    return [x.item(), y.item()]


@right([3, 6], [3, 10], [3, 14], [12, 6], [12, 10], [12, 14])
def a_mesh_of_devices():
    # Ranks 0 1 2 / 3 4 5: the sum of the ranks in a row, and twice that of a column.
    rank, _ = me()
    mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("column", "row"))
    x, y = number(rank), number(2 * rank)
    dist.all_reduce(x, group=mesh["row"].get_group())
    dist.all_reduce(y, group=mesh["column"].get_group())
    return [x.item(), y.item()]


@right([0, 0], [1, 2], [0, 0], [3, 2])
def a_group_of_ranks_that_make_it_alone():
    rank, _ = me()
    x = number(0)
    if rank % 2:
        group = dist.new_group([1, 3], use_local_synchronization=True)
        x += rank
        dist.all_reduce(x, dist.ReduceOp.AVG, group=group)
        dist.destroy_process_group(group)
    return [rank * (rank % 2), x.item()]


@right([6, 6, 6], [6, 6, 6], [6, 6, 6], [6, 6, 6])
def groups_made_and_destroyed():
    sums = []
    for _ in range(3):
        group = dist.new_group()
        x = number(dist.get_rank())
        dist.all_reduce(x, group=group)
        dist.destroy_process_group(group)
        sums.append(x.item())
    return sums


# Collectives


@right([6, 0, 3, 1], [6, 0, 3, 1], [6, 0, 3, 1])
def operations_of_all_kinds():
    rank, _ = me()
    xs = [torch.tensor([value]) for value in (rank + 1, rank, rank, 1 << rank | 1)]
    ops = ("PRODUCT", "MIN", "BXOR", "BAND")
    for x, op in zip(xs, ops, strict=True):
        dist.all_reduce(x, getattr(dist.ReduceOp, op))
    return [x.item() for x in xs]


@right([0, 10, 20], [1, 11, 21], [2, 12, 22])
def roots_that_take_turns():
    rank, size = me()
    got = []
    for root in range(size):
        parts = [number(10 * root + r) for r in range(size)] if rank == root else None
        mine = number()
        dist.scatter(mine, parts, src=root)
        back = [number() for _ in range(size)] if rank == root else None
        dist.gather(mine, back, dst=root)
        if back is not None:
            assert [x.item() for x in back] == [10 * root + r for r in range(size)]
        got.append(mine.item())
    return got


@right([6, 10, 14, 18], [6, 10, 14, 18], [6, 10, 14, 18], [6, 10, 14, 18])
def an_all_reduce_made_of_a_reduce_scatter_and_an_all_gather():
    # Element i of rank r is i + r; 0 + 1 + 2 + 3 = 6.
    rank, size = me()
    part, whole = torch.empty(1), torch.empty(size)
    dist.reduce_scatter_tensor(part, torch.arange(4.0) + rank)
    dist.all_gather_into_tensor(whole, part)
    return whole.tolist()


@right([[10], [20, 20]], [[11, 11], [21, 21, 21]])
def uneven_rows_from_all_to_all():
    # Rank q sends q + r + 1 rows of 10 (q + 1) + r to rank r.
    rank, size = me()
    give = [rank + r + 1 for r in range(size)]
    rows = torch.cat([torch.full((n,), 10.0 * (rank + 1) + r) for r, n in enumerate(give)])
    output = torch.empty(sum(give))  # it gets as many as it gives
    dist.all_to_all_single(output, rows, give, give)
    return [part.tolist() for part in output.split(give)]


@right([0, 100, 200, 10], [1, 101, 201, 10], [2, 102, 202, 10])
def lists_from_all_to_all_in_a_coalesced_sum():
    rank, size = me()
    output = [number() for _ in range(size)]
    dist.all_to_all(output, [number(100 * rank + r) for r in range(size)])
    x, y = number(rank), number(rank + 1)
    with dist._coalescing_manager(async_ops=True) as works:
        dist.all_reduce(x)
        dist.all_reduce(y)
    works.wait()
    return [*(t.item() for t in output), x.item() + y.item() + 1]


def _product() -> list[Any]:
    a, b = torch.arange(12.0).view(4, 3), torch.arange(6.0).view(3, 2)
    return (a @ b).view(2, 2, 2).tolist()


@right(2, _product)
def a_product_of_matrices_in_shards():
    # Each rank has two rows of a, and a share of the rows of b that it gives to the other.
    rank, _ = me()
    a = torch.arange(12.0).view(4, 3)[2 * rank : 2 * rank + 2]
    b = torch.arange(6.0).view(3, 2)
    shares = [b[:2].clone(), b[2:].clone()]
    result = torch.zeros(2, 2)
    for owner, columns in enumerate((slice(0, 2), slice(2, 3))):
        share = shares[owner] if owner == rank else torch.empty_like(shares[owner])
        dist.broadcast(share, src=owner)
        result += a[:, columns] @ share
    return result.tolist()


# Any source, polling, stores, objects


@right(14, 1, 2, 3)
def messages_from_any_rank():
    rank, size = me()
    if rank:
        dist.send(number(rank), 0)
        return rank
    total = 0.0
    for _ in range(size - 1):
        x = number()
        source = dist.recv(x)
        assert source == x.item()
        total += source * x.item()
    return total


@right([0, 1, 4, 9, 16, 25, 36], [], [])
def a_master_that_hands_out_tasks():
    # Who does a task depends on the order in which ranks run; the results do not.
    rank, size = me()
    answer, task = torch.tensor([-1.0, 0.0]), number()
    while rank:
        dist.send(answer, 0)
        dist.recv(task, 0)
        if task.item() < 0:
            return []
        answer = torch.tensor([task.item(), task.item() ** 2])
    results = torch.zeros(7)
    for following in [*range(7), *[-1] * (size - 1)]:
        worker = dist.recv(answer)
        if answer[0] >= 0:
            results[int(answer[0])] = answer[1]
        dist.send(number(following), worker)
    return results.tolist()


@right([3, 2], [3, 2], [3, 2])
def a_store_that_all_write_to():
    rank, size = me()
    store = dist.distributed_c10d._get_default_store()
    store.add("arrived", 1)
    store.set(f"value of {rank}", str(rank))
    while int(store.add("arrived", 0)) < size:
        store.check(["all have arrived"])
    values = [int(store.get(f"value of {r}")) for r in range(size)]
    return [sum(values), max(values)]


@right(*[["a", "b", "c", 5, {"of": r}, ["a", "b", "c"] if r == 1 else []] for r in range(3)])
def objects():
    rank, size = me()
    names: list[Any] = [None] * size
    dist.all_gather_object(names, "abc"[rank])
    sent = [5 if rank == 0 else None]
    dist.broadcast_object_list(sent, src=0)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [{"of": r} for r in range(size)] if rank == 2 else None, src=2)
    gathered: list[Any] | None = [None] * size if rank == 1 else None
    dist.gather_object("abc"[rank], gathered, dst=1)
    return [*names, *sent, *mine, gathered or []]


@right(3, 3, 3)
def a_call_that_is_refused_does_not_count():
    rank, _ = me()
    x = number(rank)
    if rank == 1:
        with contextlib.suppress(ValueError):
            dist.all_gather([number()], x)  # too few
    dist.all_reduce(x)
    return x.item()


@right(18, 18)
def threads_that_only_compute():
    rank, _ = me()
    with ThreadPoolExecutor(2) as pool:
        x = number(sum(pool.map(lambda n: n * (rank + 1), range(4))))
    dist.all_reduce(x)
    return x.item()


# Random numbers and gradients


def _drawn() -> list[Any]:
    numbers = []
    for rank in range(3):
        torch.manual_seed(rank)
        largest = max(torch.rand(3).max().item() for _ in range(4))
        kept = torch.dropout(torch.ones(5), 0.5, True)
        numbers.append([kept.tolist(), largest, torch.randperm(6).tolist()])
    largest = max(x for _, x, _ in numbers)
    return [[kept, largest, order] for kept, _, order in numbers]


@right(3, _drawn)
def random_numbers_between_calls():
    torch.manual_seed(dist.get_rank())
    x = number()
    for _ in range(4):
        x = torch.maximum(x, torch.rand(3).max())
        dist.barrier()
    kept = torch.dropout(torch.ones(5), 0.5, True)
    dist.all_reduce(x, dist.ReduceOp.MAX)
    return [kept.tolist(), x.item(), torch.randperm(6).tolist()]


@right([6, 6], [9, 9], [12, 12])
def gradients_through_an_all_gather():
    # Rank r's loss is the sum over q of (q + r + 1) x_q: the gradient at q is 3 q + 6.
    rank, _ = me()
    x = torch.ones(2, requires_grad=True)
    parts = differentiable.all_gather(x)
    sum((q + rank + 1) * part.sum() for q, part in enumerate(parts)).backward()
    return x.grad.tolist()


@right([60], [40], [30])
def gradients_back_through_a_pipeline():
    # 5 goes through factors 2, 3 and 4.
    rank, size = me()
    factor = number(rank + 2).requires_grad_()
    x = number(5)
    if rank > 0:
        dist.recv(x, rank - 1)
    x.requires_grad_()
    y = x * factor
    upstream = number(1)
    if rank < size - 1:
        dist.send(y.detach(), rank + 1)
        dist.recv(upstream, rank + 1)
    y.backward(upstream)
    if rank > 0:
        dist.send(x.grad, rank - 1)
    return factor.grad.tolist()


class _SumForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class _SumBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


def _layers() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return tuple(  # type: ignore[return-value]
        torch.randint(-3, 4, shape, generator=generator).float()
        for shape in ((2, 4), (4, 6), (6, 4))
    )


def _whole_layers() -> list[Any]:
    x, first, second = (t.requires_grad_() for t in _layers())
    y = torch.relu(x @ first) @ second
    y.square().sum().backward()
    halves = zip(first.grad.chunk(2, 1), second.grad.chunk(2, 0), strict=True)
    return [[y.tolist(), x.grad.tolist(), a.tolist(), b.tolist()] for a, b in halves]


@right(2, _whole_layers)
def layers_that_are_split_over_ranks():
    rank, size = me()
    x, first, second = _layers()
    mine = [first.chunk(size, 1)[rank].clone(), second.chunk(size, 0)[rank].clone()]
    x, a, b = (t.requires_grad_() for t in (x, *mine))
    y = _SumForward.apply(torch.relu(_SumBackward.apply(x) @ a) @ b)
    y.square().sum().backward()
    return [t.tolist() for t in (y, x.grad, a.grad, b.grad)]


def _model_and_data() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(11)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    return model, torch.randn(3, 8, 3)  # steps, samples, features


def _train(model: torch.nn.Module, batches: torch.Tensor) -> list[Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return [p.tolist() for p in model.parameters()]


@right(2, lambda: [_train(*_model_and_data())] * 2)
def three_steps_of_data_parallel_training():
    rank, size = me()
    model, data = _model_and_data()
    return _train(DistributedDataParallel(model), data.chunk(size, 1)[rank])
