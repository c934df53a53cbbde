"""What the framework programs share: small models, each rank's batches, the training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

CPU = torch.device("cpu")
FEATURES = 8
CLASSES = 4
STEPS = 3


def mlp(device: torch.device, hidden: int = 16, seed: int = 0) -> nn.Sequential:
    """The same weights on every rank, and no trace in the rank's own random state."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(FEATURES, hidden), nn.Tanh(), nn.Linear(hidden, CLASSES))
    model.to_empty(device=CPU)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator) - 0.5)
    return model.to(device)


def batch(step: int, rank: int, device: torch.device, size: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(size, FEATURES, generator=generator)
    y = torch.randint(CLASSES, (size,), generator=generator)
    return x.to(device), y.to(device)


def batches(device: torch.device, rank: int | None = None) -> list[tuple[Tensor, Tensor]]:
    """One batch a step, this rank's unless a rank is given."""
    rank = dist.get_rank() if rank is None else rank
    return [batch(step, rank, device) for step in range(STEPS)]


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Iterable[tuple[Tensor, Tensor]],
    before_step: Callable[[], object] = lambda: None,
) -> Tensor:
    """Train on the batches and return the loss of each step."""
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        before_step()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """What this rank holds: of a sharded parameter, its shard."""
    return {name: local(p).detach().clone() for name, p in model.named_parameters()}


def local(x: Tensor) -> Tensor:
    to_local = getattr(x, "to_local", None)
    return x if to_local is None else to_local()
