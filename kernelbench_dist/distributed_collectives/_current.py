"""Which virtual rank this thread is. Apart, so that it needs no torch.distributed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelbench_dist.distributed_collectives.virtual._baton import Rank


class _Current(threading.local):
    rank: Rank | None = None


_current = _Current()


def current_rank() -> Rank | None:
    return _current.rank


def become_rank(rank: Rank) -> None:
    """For the rest of this thread."""
    _current.rank = rank
