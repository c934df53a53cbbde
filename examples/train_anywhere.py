"""One training program on virtual ranks, on gloo processes and on GPUs with NCCL: the same losses.

A small transformer learns to count. Its layers are divided among the ranks by tensor parallelism,
and the pieces once more, with the batch, by FSDP2. The program is plain torch.distributed. Only the
last line of `main` knows what its ranks are:

    python examples/train_anywhere.py                             # 8 virtual ranks, one device
    python examples/train_anywhere.py --backend gloo --ranks 4    # 4 processes
    python examples/train_anywhere.py --backend nccl --ranks 4    # 4 GPUs
    torchrun --nproc-per-node 4 examples/train_anywhere.py --backend gloo
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from kernelbench_dist.distributed_collectives import (
    default_device,
    get_rank,
    get_world_size,
    is_distributed_run,
    run_spmd,
)

VOCABULARY, WIDTH, HEADS, BLOCKS = 32, 16, 4, 2
BATCH, LENGTH = 8, 12  # of all ranks together
RANKS = (1, 2, 4, 8)  # 2 share the batch, and up to 4 share the heads


# The model: nothing here knows of ranks


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        # -1, not HEADS: a rank may have some of the heads only.
        q, k, v = (
            layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batches(steps: int) -> Iterator[Tensor]:
    """(BATCH, LENGTH + 1) tokens a step: rows that count up from anywhere, by 1, 2 or 3."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        start = torch.randint(VOCABULARY, (BATCH, 1), generator=generator)
        stride = torch.randint(1, 4, (BATCH, 1), generator=generator)
        yield (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY


# The program of one rank


def train(steps: int) -> list[float]:
    """The loss of the whole batch at each step, which is the same on every rank."""
    device = torch.device("cpu") if dist.get_backend() == "gloo" else default_device()
    # A row of the mesh has one part of the batch; a column has one part of each layer.
    data_ranks = min(2, dist.get_world_size())
    mesh = init_device_mesh(
        device.type, (data_ranks, dist.get_world_size() // data_ranks), mesh_dim_names=("dp", "tp")
    )

    torch.manual_seed(0)  # every rank starts with the same weights, drawn on the CPU
    model = Transformer().to(device)

    # Tensor parallelism. A column-wise layer gives some of its features, here some of the heads; a
    # row-wise layer takes these and adds up over the ranks. So each pair communicates once.
    plan = {
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.out": RowwiseParallel(),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], plan)

    # FSDP2. What a rank has left of a block is divided among the ranks that differ in their part of
    # the batch; forward and backward gather one block at a time, and gradients come back averaged.
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])

    # foreach=False: parameters of the blocks are on both dimensions of the mesh and the others on
    # one, and such a mixture is not for one call.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, foreach=False)
    losses = []
    for batch in batches(steps):
        mine = batch.chunk(data_ranks)[mesh["dp"].get_local_rank()].to(device)
        logits = model(mine[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), mine[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        # The parts are equal: the mean of their means is that of the whole batch.
        mean = loss.detach() / data_ranks
        dist.all_reduce(mean, group=mesh["dp"].get_group())
        losses.append(mean.item())
    return losses


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--backend", choices=("virtual", "gloo", "nccl"), default="virtual", help="%(default)s")
    add("--ranks", type=int, help="1, 2, 4 or 8; default 8, and under torchrun what it started")
    add("--steps", type=int, default=10, help="default %(default)s")
    options = parser.parse_args(argv)
    if is_distributed_run() and options.backend == "virtual":
        parser.error("--backend virtual starts ranks itself: under torchrun, use gloo or nccl")
    if options.ranks is None:
        options.ranks = get_world_size() if is_distributed_run() else 8
    if options.ranks not in RANKS:
        parser.error(f"{options.ranks} ranks: one of {', '.join(map(str, RANKS))} is accepted")
    if options.steps < 1:
        parser.error(f"--steps {options.steps}: 1 or more is accepted")

    losses = run_spmd(train, options.ranks, (options.steps,), backend=options.backend)[0]
    if get_rank() == 0:  # under torchrun every process is here
        print(f"{options.ranks} ranks, {options.backend}\n\nstep  loss")
        for step, loss in enumerate(losses, start=1):
            print(f"{step:4}  {loss:.6f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
