"""Programs with torch.compile."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from spmd_programs_messages import own
from spmd_programs_models import CLASSES, CPU, FEATURES, STEPS
from torch import Tensor
from torch.distributed import get_rank
from torch.distributed.device_mesh import init_device_mesh


def _compiled(backend: str, device: torch.device) -> list[Tensor]:
    group = dist.group.WORLD

    @torch.compile(backend=backend, fullgraph=True)
    def net(x: Tensor, w: Tensor) -> Tensor:
        h = torch.tanh(funcol.all_gather_tensor(x, 0, group) @ w)
        s = funcol.all_reduce(h, "sum", group)
        return funcol.reduce_scatter_tensor(s * h, "sum", 0, group).relu()

    w = own(device, FEATURES, CLASSES, seed=1)
    return [net(own(device, 2, FEATURES, seed=2 + step), w) for step in range(STEPS)]


def compile_eager(device: torch.device = CPU) -> list[Tensor]:
    return _compiled("eager", device)


def compile_aot_eager(device: torch.device = CPU) -> list[Tensor]:
    return _compiled("aot_eager", device)


def compile_inductor(device: torch.device = CPU) -> list[Tensor]:
    return _compiled("inductor", device)


@torch.compile(backend="eager", fullgraph=True)
def _with_rank(x: Tensor) -> Tensor:
    """One code object for all ranks; in it the rank is a constant, by whichever name."""
    y = x * (dist.get_rank() + 1) + 10 * get_rank()
    return y + 1000 if dist.get_rank() == 2 else y


def compile_rank(device: torch.device = CPU) -> list[Tensor]:
    """No rank may run what was compiled for another; nor may the next program's ranks."""
    mesh = init_device_mesh(device.type, (2, 2), mesh_dim_names=("rows", "columns"))
    group = mesh.get_group("columns")

    @torch.compile(backend="eager")
    def in_groups(x: Tensor) -> Tensor:
        y = x + 10 * mesh["rows"].get_local_rank() + dist.get_group_rank(group, dist.get_rank())
        return y + 100 * group.rank()

    x = torch.ones(3, device=device)
    return [f(x * step) for step in range(2) for f in (_with_rank, in_groups)]


def compile_uneven(device: torch.device = CPU) -> list[Tensor]:
    """Which sizes a compiled function has seen is the rank's own affair, as are its recompiles."""

    @torch.compile(backend="aot_eager", fullgraph=True)
    def net(x: Tensor) -> Tensor:
        return (x * x.shape[0]).cumsum(0)

    return [net(own(device, dist.get_rank() + step + 1, 3)) for step in range(STEPS)]


def compile_backward(device: torch.device = CPU) -> list[Tensor]:
    """Collectives in a compiled forward and backward."""
    group = dist.group.WORLD

    @torch.compile(backend="aot_eager")
    def loss(x: Tensor, w: Tensor) -> Tensor:
        gathered = funcol.all_gather_tensor_autograd(x @ w, 0, group)
        return gathered.square().sum()

    w = own(device, FEATURES, CLASSES, seed=1).requires_grad_()
    values = []
    for step in range(STEPS):
        value = loss(own(device, 2, FEATURES, seed=2 + step), w)
        (grad,) = torch.autograd.grad(value, w)
        values += [value.detach(), grad]
    return values
