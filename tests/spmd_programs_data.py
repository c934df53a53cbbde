"""Programs that hold the whole model on every rank."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from spmd_programs_models import CLASSES, CPU, batch, batches, mlp, train, weights
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def ddp(device: torch.device = CPU) -> dict[str, Tensor]:
    model = DistributedDataParallel(mlp(device))
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(device))
    return {"losses": losses, **weights(model.module)}


def ddp_small_buckets(device: torch.device = CPU) -> dict[str, Tensor]:
    """A bucket a parameter: several all_reduces are under way at once."""
    model = DistributedDataParallel(mlp(device), bucket_cap_mb=1e-4)
    losses = train(model, torch.optim.Adam(model.parameters(), lr=0.1), batches(device))
    return {"losses": losses, **weights(model.module)}


def ddp_broadcasts_buffers(device: torch.device = CPU) -> dict[str, Tensor]:
    """BatchNorm's statistics are rank 0's, and the weights that a rank starts with too."""
    net = nn.Sequential(mlp(device, seed=dist.get_rank()), nn.BatchNorm1d(CLASSES, device=device))
    model = DistributedDataParallel(net)
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(device))
    return {"losses": losses, **weights(net), **dict(net.named_buffers())}


class Branches(nn.Module):
    """Uses one of two layers: which one, the rank and the call say."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.first, self.second = mlp(device, seed=1), mlp(device, seed=2)
        self.calls = dist.get_rank()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.first(x) if self.calls % 3 else self.second(x)


def ddp_find_unused(device: torch.device = CPU) -> dict[str, Tensor]:
    model = DistributedDataParallel(Branches(device), find_unused_parameters=True)
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(device))
    return {"losses": losses, **weights(model.module)}


def ddp_static_graph(device: torch.device = CPU) -> dict[str, Tensor]:
    model = DistributedDataParallel(mlp(device), static_graph=True)
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(device))
    return {"losses": losses, **weights(model.module)}


def ddp_join(device: torch.device = CPU) -> dict[str, Tensor]:
    """Rank r has 2 + r batches."""
    rank = dist.get_rank()
    model = DistributedDataParallel(mlp(device))
    data = [batch(step, rank, device) for step in range(2 + rank)]
    with Join([model]):
        losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
    return {"losses": losses, **weights(model.module)}


def ddp_bf16_hook(device: torch.device = CPU) -> dict[str, Tensor]:
    model = DistributedDataParallel(mlp(device))
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(device))
    return {"losses": losses, **weights(model.module)}


def ddp_own_bf16_hook(device: torch.device = CPU) -> dict[str, Tensor]:
    """What the hook above does, which torch refuses where there is no NCCL."""

    def hook(_, bucket):
        small = bucket.buffer().bfloat16() / dist.get_world_size()
        work = dist.all_reduce(small, async_op=True)
        return work.get_future().then(lambda future: bucket.buffer().copy_(future.value()[0]))

    model = DistributedDataParallel(mlp(device))
    model.register_comm_hook(None, hook)
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(device))
    return {"losses": losses, **weights(model.module)}


def ddp_python_hook(device: torch.device = CPU) -> dict[str, Tensor]:
    """A hook of the user's own, which chains a division to the sum."""

    def hook(_, bucket):  # no annotations: torch reads them, and takes no strings
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        size = dist.get_world_size()
        return work.get_future().then(lambda future: future.value()[0] / size)

    model = DistributedDataParallel(mlp(device))
    model.register_comm_hook(None, hook)
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(device))
    return {"losses": losses, **weights(model.module)}


def ddp_power_sgd(device: torch.device = CPU) -> dict[str, Tensor]:
    model = DistributedDataParallel(mlp(device))
    state = power.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1
    )
    model.register_comm_hook(state, power.powerSGD_hook)
    data = [batch(step, dist.get_rank(), device) for step in range(5)]  # 2 as usual, 3 compressed
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
    return {"losses": losses, **weights(model.module)}


def ddp_no_sync(device: torch.device = CPU) -> dict[str, Tensor]:
    """Gradients are gathered over two batches, of which the second communicates."""
    model = DistributedDataParallel(mlp(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        for part in range(2):
            x, y = batch(2 * step + part, dist.get_rank(), device)
            if part == 0:
                with model.no_sync():
                    F.cross_entropy(model(x), y).backward()
            else:
                F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return weights(model.module)


def ddp_sampler(device: torch.device = CPU) -> dict[str, Tensor]:
    """22 samples: the sampler repeats two, so that each of 4 ranks has 6."""
    x, y = batch(0, 99, device, size=22)
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, seed=5)
    loader = DataLoader(data, batch_size=3, sampler=sampler)
    model = DistributedDataParallel(mlp(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        losses.append(train(model, optimizer, loader))
    return {"losses": torch.cat(losses), **weights(model.module)}


def ddp_dropout(device: torch.device = CPU) -> dict[str, Tensor]:
    """Each rank draws masks of its own; `draw` is where its generator stands at the end."""
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Dropout(0.3), mlp(device), nn.Dropout(0.1))
    model = DistributedDataParallel(net)
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(device))
    return {"losses": losses, "draw": torch.rand(3, device=device), **weights(net)}


def zero_1(device: torch.device = CPU) -> dict[str, Tensor]:
    """Each rank holds a part of Adam's state; rank 0 gathers all of it at the end."""
    model = DistributedDataParallel(mlp(device))
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.05
    )
    losses = train(model, optimizer, batches(device))
    optimizer.consolidate_state_dict(to=0)
    result = {"losses": losses, **weights(model.module)}
    if dist.get_rank() == 0:
        for index, state in optimizer.state_dict()["state"].items():
            result[f"exp_avg.{index}"] = state["exp_avg"]
    return result


def normed(device: torch.device = CPU) -> nn.Sequential:
    return nn.Sequential(mlp(device), nn.BatchNorm1d(CLASSES, device=device))


def sync_batch_norm(device: torch.device = CPU) -> dict[str, Tensor]:
    """torch has it for CUDA alone, and says so on the CPU."""
    net = nn.SyncBatchNorm.convert_sync_batchnorm(normed(device))
    model = DistributedDataParallel(net)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(device))
    return {**weights(net), **dict(net.named_buffers())}


def one_process(
    ranks: int,
    optimizer: type = torch.optim.SGD,
    lr: float = 0.1,
    make: Callable[[torch.device], nn.Module] = mlp,
) -> dict[str, Tensor]:
    """No ranks: what they must come to, by training on the batches of all of them at once."""
    model = make(CPU)
    data = [
        (torch.cat([x for x, _ in step]), torch.cat([y for _, y in step]))
        for step in zip(*(batches(CPU, rank) for rank in range(ranks)), strict=True)
    ]
    train(model, optimizer(model.parameters(), lr=lr), data)
    return {**weights(model), **dict(model.named_buffers())}
