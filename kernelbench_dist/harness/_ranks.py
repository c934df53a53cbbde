"""The ranks of a torch.distributed program: what one is to its module, and how messages name all.

With "gloo" every rank is a worker of its own, and they meet on gloo. With "virtual" one worker has
all of them; see `_virtual`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import torch
import torch.distributed as dist

from kernelbench_dist.harness._channel import ChannelError

RanksKind = Literal["virtual", "gloo"]
Reply: TypeAlias = tuple[dict[str, Any], list[torch.Tensor]]
Call: TypeAlias = Callable[[], Any]
T = TypeVar("T")


class OwnProcess:
    """A rank that has its process to itself; also a program's only one."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size

    def join(self, rendezvous: str | None) -> None:
        """Meet the others at the file `rendezvous`."""
        if self.world_size == 1 or dist.is_initialized():
            return
        os.environ.update(RANK=str(self.rank), WORLD_SIZE=str(self.world_size), LOCAL_RANK="0")
        dist.init_process_group(
            "gloo",
            init_method=f"file://{rendezvous}",
            rank=self.rank,
            world_size=self.world_size,
        )

    def together(self, own: Sequence[Call]) -> list[Call]:
        """What `work` below is to call for each of this rank's calls."""
        return list(own)

    def conduct(
        self, own: Sequence[Call], work: Callable[[], T], results: list[Any] | None = None
    ) -> T:
        """What `work` returns, which calls what `together` gave for `own`.

        Where one process has several ranks, it is done once for all of them. results: what the
        calls of a rank return that does not work itself.
        """
        return work()


def pack(each: Sequence[Reply]) -> Reply:
    """One message of all ranks' parts."""
    fields = {"ranks": [own for own, _ in each], "counts": [len(tensors) for _, tensors in each]}
    return fields, [tensor for _, tensors in each for tensor in tensors]


def unpack(
    message: dict[str, Any], tensors: Sequence[torch.Tensor], world_size: int
) -> list[Reply]:
    """All ranks' parts of a message. ChannelError where they are not those of so many ranks."""
    parts, counts = message.get("ranks"), message.get("counts")
    if not (
        isinstance(parts, list)
        and isinstance(counts, list)
        and len(parts) == len(counts) == world_size
        and all(isinstance(part, dict) for part in parts)
        and all(type(count) is int and count >= 0 for count in counts)
        and sum(counts) == len(tensors)
    ):
        raise ChannelError(f"it holds no answers of {world_size} ranks")
    rest = iter(tensors)
    return [(part, [next(rest) for _ in range(n)]) for part, n in zip(parts, counts, strict=True)]
