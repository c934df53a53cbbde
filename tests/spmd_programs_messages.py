"""Programs that call torch.distributed themselves, and those that compute on DTensors."""

from __future__ import annotations

import contextlib
import datetime
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed._symmetric_memory as symmetric
import torch.nn.functional as F
from spmd_programs_models import CLASSES, CPU, FEATURES, STEPS, batch, mlp
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor


def own(device: torch.device, *shape: int, seed: int = 0) -> Tensor:
    """A tensor of the rank's own."""
    generator = torch.Generator().manual_seed(10 * seed + dist.get_rank())
    return torch.randn(shape, generator=generator).to(device)


def dtensor_redistribute(device: torch.device = CPU) -> dict[str, Tensor]:
    """From each placement of a 7 x 6 matrix (uneven shards) to each other one."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(7, 6, generator=generator).to(device)
    result = {}
    for source in (Shard(0), Shard(1), Replicate(), Partial()):
        if source == Partial():
            start = DTensor.from_local(own(device, 7, 6), mesh, [source])
        else:
            start = distribute_tensor(x, mesh, [source])
        for target in (Shard(0), Shard(1), Replicate()):
            result[f"{source} to {target}"] = start.redistribute(mesh, [target]).to_local()
    return result


def dtensor_mesh(device: torch.device = CPU) -> dict[str, Tensor]:
    """A product and its gradients on a 2 x 2 mesh."""
    mesh = init_device_mesh(device.type, (2, 2), mesh_dim_names=("rows", "columns"))
    generator = torch.Generator().manual_seed(4)
    a, b = (torch.randn(shape, generator=generator).to(device) for shape in ((6, 4), (4, 8)))
    left = distribute_tensor(a, mesh, [Shard(0), Shard(1)]).requires_grad_()
    right = distribute_tensor(b, mesh, [Replicate(), Shard(0)]).requires_grad_()
    product = left @ right
    loss = product.redistribute(mesh, [Replicate(), Replicate()]).square().sum()
    loss.backward()
    assert left.grad is not None
    assert right.grad is not None
    return {
        "loss": loss.to_local().detach(),
        "left": left.grad.to_local(),
        "right": right.grad.full_tensor(),
    }


def dtensor_random(device: torch.device = CPU) -> dict[str, Tensor]:
    """The same numbers in every layout: torch has it for CUDA alone."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    torch.manual_seed(11)
    x = torch.distributed.tensor.rand(8, 6, device_mesh=mesh, placements=[Shard(0)])
    y = torch.distributed.tensor.randn(8, 6, device_mesh=mesh, placements=[Replicate()])
    dropped = F.dropout(x, 0.5)
    return {"x": x.full_tensor(), "y": y.to_local(), "dropped": dropped.full_tensor()}


def dtensor_random_in_place(device: torch.device = CPU) -> dict[str, Tensor]:
    """On the CPU each rank draws from its own generator, and replicas differ if the seeds do."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    torch.manual_seed(11 + dist.get_rank())
    x = distribute_tensor(torch.zeros(8, 6, device=device), mesh, [Shard(0)]).uniform_()
    return {"x": x.full_tensor(), "dropped": F.dropout(x, 0.5).full_tensor()}


def by_hand(device: torch.device = CPU) -> dict[str, Tensor]:
    """A tensor-parallel net on functional collectives: one gathers, the next one scatters."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    net = mlp(device)
    rows = net[0].weight.detach().chunk(size, 0)[rank].clone().requires_grad_()
    columns = net[2].weight.detach().chunk(size, 1)[rank].clone().requires_grad_()
    losses = []
    for step in range(STEPS):
        x, y = (part.chunk(size)[rank] for part in batch(step, 0, device, size=8))
        gathered = funcol.all_gather_tensor_autograd(x, 0, group)
        partial = F.linear(torch.tanh(F.linear(gathered, rows)), columns)
        mine = funcol.reduce_scatter_tensor_autograd(partial, "sum", 0, group)
        loss = F.cross_entropy(mine, y, reduction="sum")
        for parameter, grad in zip(
            (rows, columns), torch.autograd.grad(loss, (rows, columns)), strict=True
        ):
            with torch.no_grad():
                parameter -= 0.05 * grad
        losses.append(loss.detach())
    return {"rows": rows.detach(), "columns": columns.detach(), "losses": torch.stack(losses)}


def functional(device: torch.device = CPU) -> list[Tensor]:
    group = dist.group.WORLD
    x = own(device, 8, 4)
    exchanged = funcol.all_to_all_single(x, None, None, group)
    several = funcol.all_reduce_coalesced([x, x[:3].clone()], "max", group)
    return [
        funcol.all_reduce(x, "sum", group) + 1,
        funcol.all_reduce(x, "avg", group) + 1,
        funcol.all_gather_tensor(x, 1, group) + 1,
        funcol.reduce_scatter_tensor(x, "sum", 1, group) + 1,
        funcol.broadcast(x, 2, group) + 1,
        exchanged + 1,
        *(y + 1 for y in several),
    ]


def fused_fallbacks(device: torch.device = CPU) -> list[Tensor]:
    """What torch computes fused operators with, where ranks share no memory."""
    group = dist.group.WORLD.group_name
    x, w = own(device, 4, FEATURES, seed=1), own(device, FEATURES, CLASSES, seed=2)
    gathered, (product,) = symmetric._fused_all_gather_matmul_fallback(x, [w], 0, group)
    scattered = symmetric._fused_matmul_reduce_scatter_fallback(gathered, w, "sum", 0, group)
    return [gathered, product, scattered]


def objects(device: torch.device = CPU) -> list[Tensor]:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = {"rank": rank, "text": "x" * (rank + 1), "tensor": own(device, rank + 1)}
    everyone: list = [None] * size
    dist.all_gather_object(everyone, mine)
    shared = [mine, rank] if rank == 1 else [None, None]
    dist.broadcast_object_list(shared, src=1)
    gathered: list | None = [None] * size if rank == 2 else None
    dist.gather_object(rank * 10, gathered, dst=2)
    part: list = [None]
    dist.scatter_object_list(part, [f"for {r}" for r in range(size)] if rank == 0 else None, src=0)
    if rank == 0:
        dist.send_object_list(["hello", torch.ones(2)], dst=3)
    note: list = [None, None]
    if rank == 3:
        dist.recv_object_list(note, src=0)
        assert note[0] == "hello"
    assert part == [f"for {rank}"]
    assert gathered is None or gathered == [0, 10, 20, 30]
    assert [len(o["text"]) for o in everyone] == list(range(1, size + 1))
    return [torch.cat([o["tensor"] for o in everyone]), shared[0]["tensor"]]


def subgroups(device: torch.device = CPU) -> dict[str, Tensor]:
    """Groups of neighbours, of every other rank, and of one rank; ranks are unsorted on purpose."""
    rank = dist.get_rank()
    pairs, _ = dist.new_subgroups(group_size=2)
    odd = dist.new_group([3, 1])
    three = dist.new_group([0, 2, 3])
    alone = [dist.new_group([r]) for r in range(dist.get_world_size())][rank]
    x = own(device, 5)
    result = {"alone": x.clone(), "pair": x.clone()}
    dist.all_reduce(result["alone"], group=alone)
    dist.all_reduce(result["pair"], group=pairs)
    if rank in (1, 3):
        parts = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(parts, x, group=odd)
        result["odd"] = torch.cat(parts)
        result["place"] = torch.tensor(dist.get_rank(odd))
    if rank in (0, 2, 3):
        y = x.clone()
        dist.broadcast(y, src=2, group=three)
        dist.all_reduce(y, op=dist.ReduceOp.MAX, group=three)
        dist.reduce(y, dst=3, group=three)
        result["three"] = y if rank == 3 else torch.zeros(0)
    assert dist.get_process_group_ranks(odd if rank in (1, 3) else pairs)[0] <= rank
    dist.destroy_process_group(alone)
    return result


def coalescing(device: torch.device = CPU, together: bool = True) -> list[Tensor]:
    """Several calls that go out as one; not `together`, they are what must come out."""
    size = dist.get_world_size()
    sums = [own(device, n, seed=n) for n in (3, 5, 7)]
    gathered = [torch.empty(size * n, device=device) for n in (2, 4)]
    scattered = [torch.empty(n, device=device) for n in (1, 3)]

    def manager(**options: bool) -> Any:
        coalesce = dist._coalescing_manager
        return coalesce(device=device, **options) if together else contextlib.nullcontext()

    with manager():
        for x in sums:
            dist.all_reduce(x)
    with manager(async_ops=True) as works:
        for out, n in zip(gathered, (2, 4), strict=True):
            dist.all_gather_into_tensor(out, own(device, n, seed=n))
    if together:
        works.wait()
    with manager():
        for out in scattered:
            dist.reduce_scatter_tensor(out, own(device, size * out.numel(), seed=out.numel()))
    return [*sums, *gathered, *scattered]


def separately(device: torch.device = CPU) -> list[Tensor]:
    return coalescing(device, together=False)


def ring(device: torch.device = CPU) -> list[Tensor]:
    """Ring attention's pattern: size - 1 exchanges with both neighbours, computing meanwhile."""
    rank, size = dist.get_rank(), dist.get_world_size()
    held = own(device, 6)
    seen = [held]
    for _ in range(size - 1):
        arriving = torch.empty_like(held)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, held, (rank + 1) % size),
                dist.P2POp(dist.irecv, arriving, (rank - 1) % size),
            ]
        )
        for work in works:
            work.wait()
        held = arriving
        seen.append(held)
    return seen


def point_to_point(device: torch.device = CPU) -> list[Tensor]:
    """Blocking sends up a line and down again, with tags; at last a message from any rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.zeros(4, device=device)
    if rank > 0:
        dist.recv(x, src=rank - 1, tag=5)
    x += own(device, 4)
    if rank < size - 1:
        dist.send(x, dst=rank + 1, tag=5)
    total = torch.zeros(4, device=device)
    if rank == 0:
        for _ in range(size - 1):
            y = torch.empty(4, device=device)
            sender = dist.recv(y)
            total += sender * y.round()
    else:
        dist.send(x, dst=0)
    return [x, total]


def two_groups(device: torch.device = CPU) -> list[Tensor]:
    """Asynchronous sums in two groups, waited for in an order that the rank chooses."""
    rank = dist.get_rank()
    everyone = list(range(dist.get_world_size()))
    first, second = dist.new_group(everyone), dist.new_group(everyone)
    result = []
    for step in range(STEPS):
        x, y = own(device, 9, seed=2 * step), own(device, 9, seed=2 * step + 1)
        works = [dist.all_reduce(x, group=first, async_op=True)]
        works.append(dist.all_reduce(y, group=second, async_op=True))
        for work in works if (rank + step) % 2 else reversed(works):
            work.wait()
        result += [x, y]
    return result


def two_groups_posted_crosswise(device: torch.device = CPU) -> list[Tensor]:
    """Posted in an order that the rank chooses too: legal, as nothing waits between."""
    rank = dist.get_rank()
    everyone = list(range(dist.get_world_size()))
    groups = dist.new_group(everyone), dist.new_group(everyone)
    tensors = [own(device, 9, seed=0), own(device, 9, seed=1)]
    order = (0, 1) if rank % 2 else (1, 0)
    works = [dist.all_reduce(tensors[i], group=groups[i], async_op=True) for i in order]
    for work in works:
        work.wait()
    return tensors


def futures(device: torch.device = CPU) -> list[Tensor]:
    """Work's future, with a function chained to it."""
    x = own(device, 4)
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    return [doubled.wait(), x]


def polling(device: torch.device = CPU) -> list[Tensor]:
    """Ranks that ask again and again whether the sum is there, while one comes late."""
    result = []
    for step in range(STEPS):
        if dist.get_rank() == step:
            time.sleep(0.02)
        x = own(device, 5, seed=step)
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        while not work.is_completed():
            pass
        work.wait()
        result.append(x)
    return result


def monitored_barrier(device: torch.device = CPU) -> list[Tensor]:
    """A barrier of gloo's own, which names the ranks that do not come."""
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=20))
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=20), wait_all_ranks=True)
    return [torch.tensor(dist.get_rank())]


def uneven_all_to_all(device: torch.device = CPU) -> list[Tensor]:
    """Rank q sends (q + r) mod 3 rows to rank r."""
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = [(rank + r) % 3 for r in range(size)]
    out = torch.empty(sum(rows), 2, device=device)
    dist.all_to_all_single(out, own(device, sum(rows), 2), rows, rows)
    return [out]


def uneven_all_gather(device: torch.device = CPU, padded: bool = False) -> list[Tensor]:
    """Rank r gives r + 1 numbers; padded, all give as many, and the rest is cut off."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = own(device, rank + 1)
    if padded:
        mine = F.pad(mine, (0, size - rank - 1))
    out = [torch.empty(size if padded else r + 1, device=device) for r in range(size)]
    dist.all_gather(out, mine)
    return [part[: r + 1] for r, part in enumerate(out)]


def padded_all_gather(device: torch.device = CPU) -> list[Tensor]:
    return uneven_all_gather(device, padded=True)


def many_calls(device: torch.device = CPU) -> list[Tensor]:
    """A random walk (the same on each rank) through roots, sizes and operations."""
    generator = torch.Generator().manual_seed(0)
    size = dist.get_world_size()
    x = own(device, 12)
    for _ in range(30):
        kind, root = (int(torch.randint(n, (), generator=generator)) for n in (4, size))
        if kind == 0:
            dist.all_reduce(x)
            x /= size
        elif kind == 1:
            dist.broadcast(x[:5], src=root)
        elif kind == 2:
            out = torch.empty_like(x)
            dist.all_to_all_single(out, x)
            x = out
        else:
            part = torch.empty(3, device=device)
            dist.scatter(part, list(x.chunk(size)) if dist.get_rank() == root else None, src=root)
            x[:3] += part
    return [x]
