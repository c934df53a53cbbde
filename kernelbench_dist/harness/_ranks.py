"""The ranks of a torch.distributed program: every rank is a worker of its own."""

from __future__ import annotations

import os

import torch.distributed as dist


def join(rank: int, world_size: int, rendezvous: str | None) -> None:
    """Join the group of `world_size` workers that meet at the file `rendezvous`."""
    if world_size == 1 or dist.is_initialized():
        return
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK="0")
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size
    )
