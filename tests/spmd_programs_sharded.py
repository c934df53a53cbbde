"""Programs that divide the model among the ranks: FSDP, tensor and sequence parallel, pipelines."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from spmd_programs_models import (
    CLASSES,
    CPU,
    FEATURES,
    STEPS,
    batch,
    batches,
    local,
    mlp,
    train,
    weights,
)
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


def whole(model: nn.Module) -> dict[str, Tensor]:
    """Each sharded parameter gathered; a copy, as on one rank there is nothing to gather."""
    return {
        f"whole.{name}": p.full_tensor().detach().clone() for name, p in model.named_parameters()
    }


def world(device: torch.device, *shape: int, names: tuple[str, ...] = ("ranks",)) -> DeviceMesh:
    shape = shape or (dist.get_world_size(),)
    return init_device_mesh(device.type, shape, mesh_dim_names=names)


def fsdp1(device: torch.device = CPU) -> dict[str, Tensor]:
    model = FullyShardedDataParallel(mlp(device), device_id=device, use_orig_params=True)
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(device))
    result = {"losses": losses}
    with FullyShardedDataParallel.summon_full_params(model):
        result.update((name, p.detach().clone()) for name, p in model.named_parameters())
    return result


def fsdp2(device: torch.device = CPU) -> dict[str, Tensor]:
    """Each dimension 0 is a multiple of 4: shards are equal."""
    model = mlp(device)
    mesh = world(device)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(device))
    return {"losses": losses, **weights(model), **whole(model)}


def fsdp2_uneven(device: torch.device = CPU) -> dict[str, Tensor]:
    """5 rows among 4 ranks: 2, 2, 1 and none."""
    model = mlp(device, hidden=5)
    mesh = world(device)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    losses = train(model, torch.optim.Adam(model.parameters(), lr=0.1), batches(device))
    return {"losses": losses, **weights(model), **whole(model)}


def fsdp2_clip(device: torch.device = CPU) -> dict[str, Tensor]:
    """The norm of the gradients is that over all ranks' shards."""
    model = mlp(device)
    fully_shard(model, mesh=world(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms: list[Tensor] = []

    def clip() -> None:
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.2)
        norms.append(norm.full_tensor())

    losses = train(model, optimizer, batches(device), before_step=clip)
    return {"losses": losses, "norms": torch.stack(norms), **weights(model)}


def fsdp2_accumulate(device: torch.device = CPU) -> dict[str, Tensor]:
    """Two batches a step, and only the second one's backward communicates."""
    model = mlp(device)
    fully_shard(model, mesh=world(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(2):
            model.set_requires_gradient_sync(part == 1)
            x, y = batch(2 * step + part, dist.get_rank(), device)
            F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return weights(model)


def hsdp(device: torch.device = CPU) -> dict[str, Tensor]:
    """Two copies of the model, each on two ranks."""
    model = mlp(device)
    fully_shard(model, mesh=world(device, 2, 2, names=("replicate", "shard")))
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(device))
    return {"losses": losses, **weights(model), **whole(model)}


def fsdp2_tensor_parallel(device: torch.device = CPU) -> dict[str, Tensor]:
    """Rows of the mesh share a batch and divide the layers; columns divide what is left."""
    mesh = world(device, 2, 2, names=("data", "tensor"))
    model = mlp(device)
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    data = batches(device, mesh["data"].get_local_rank())
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
    return {"losses": losses, **weights(model), **whole(model)}


def hsdp_tensor_parallel(device: torch.device = CPU) -> dict[str, Tensor]:
    """Copies and tensor parallel, with a dimension of one rank to shard among."""
    mesh = world(device, 2, 1, 2, names=("replicate", "shard", "tensor"))
    model = mlp(device)
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["replicate", "shard"])
    data = batches(device, mesh["replicate"].get_local_rank())
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
    return {"losses": losses, **weights(model), **whole(model)}


def tensor_parallel(device: torch.device = CPU) -> dict[str, Tensor]:
    model = parallelize_module(
        mlp(device), world(device), {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    data = batches(device, rank=0)  # every rank has the same batch
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=False), data)
    return {"losses": losses, **weights(model), **whole(model)}


def sequence_parallel(device: torch.device = CPU) -> dict[str, Tensor]:
    """Between the linear layers the sequence (dimension 1) is divided, within them the features."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import PrepareModuleInput

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(FEATURES, device=device)
            self.net = mlp(device)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(self.norm(x)).flatten(0, 1)

    block = Block()
    parallelize_module(
        block,
        world(device),
        {
            "norm": SequenceParallel(),
            "net": PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            ),
            "net.0": ColwiseParallel(),
            "net.2": RowwiseParallel(),
        },
    )
    data = []
    for step in range(STEPS):
        x, y = batch(step, 0, device, size=16)
        part = x.view(2, 8, FEATURES).chunk(dist.get_world_size(), dim=1)[dist.get_rank()]
        data.append((part, y))
    losses = train(block, torch.optim.SGD(block.parameters(), lr=0.1, foreach=False), data)
    return {"losses": losses, **weights(block), **whole(block)}


def stages(device: torch.device) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for index in range(dist.get_world_size()):
        torch.manual_seed(index)
        last = index == dist.get_world_size() - 1
        linear = nn.Linear(FEATURES, CLASSES if last else FEATURES).to(device)
        layers.append(linear if last else nn.Sequential(linear, nn.Tanh()))
    return layers


def _pipeline(device: torch.device, schedule_class: type, known: bool) -> dict[str, Tensor]:
    rank, size = dist.get_rank(), dist.get_world_size()
    model = stages(device)[rank]
    shapes = {}
    if known:  # else the stages tell each other the shapes at the first step
        # Whether a gradient is sent back is read off too: the first stage's input needs none.
        x = torch.zeros(2, FEATURES, device=device, requires_grad=rank > 0)
        shapes = {"input_args": x, "output_args": model(x)}
    stage = PipelineStage(model, rank, size, device, **shapes)
    schedule = schedule_class(stage, n_microbatches=6, loss_fn=F.cross_entropy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[Tensor] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step, 0, device, size=12)
        if rank == 0:
            schedule.step(x)
        elif rank == size - 1:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
        optimizer.step()
    last = {"losses": torch.stack(losses)} if losses else {}
    return {**weights(model), **last}


def pipeline_gpipe(device: torch.device = CPU) -> dict[str, Tensor]:
    return _pipeline(device, ScheduleGPipe, known=False)


def pipeline_1f1b(device: torch.device = CPU) -> dict[str, Tensor]:
    return _pipeline(device, Schedule1F1B, known=True)


def pipeline_1f1b_inferred(device: torch.device = CPU) -> dict[str, Tensor]:
    return _pipeline(device, Schedule1F1B, known=False)


def _to_save(device: torch.device, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = mlp(device, hidden=6, seed=seed)  # 6 rows: other shards on 2 ranks than on 4
    fully_shard(model, mesh=world(device))
    return model, torch.optim.Adam(model.parameters(), lr=0.05)


def checkpoint_save(folder: Path, device: torch.device = CPU) -> dict[str, Tensor]:
    model, optimizer = _to_save(device, seed=0)
    losses = train(model, optimizer, batches(device))
    parameters, state = get_state_dict(model, optimizer)
    dcp.save({"model": parameters, "optimizer": state}, checkpoint_id=str(folder))
    return {"losses": losses, **whole(model)}


def checkpoint_load(folder: Path, device: torch.device = CPU) -> dict[str, Tensor]:
    """On any number of ranks: load what `checkpoint_save` saved, and go on for a step."""
    model, optimizer = _to_save(device, seed=7)
    parameters, state = get_state_dict(model, optimizer)
    dcp.load({"model": parameters, "optimizer": state}, checkpoint_id=str(folder))
    set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=state)
    result = {f"loaded.{name}": p for name, p in whole(model).items()}
    for name, p in model.named_parameters():
        result[f"exp_avg.{name}"] = local(optimizer.state[p]["exp_avg"]).clone()
    losses = train(model, optimizer, batches(device)[:1])
    return {"losses": losses, **result, **whole(model)}
