"""Where calls of communication are noted, while a `CommunicationLog` listens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelbench_dist.distributed_collectives.communication_log import CommunicationLog
    from kernelbench_dist.distributed_collectives.virtual._calls import Call

active: list[CommunicationLog] = []


def record(call: Call, size: int) -> None:
    """A rank of a group of `size` makes a call."""
    for log in active:
        log.note(call)


def done(calls: Sequence[Call]) -> None:
    """Calls that have met are computed: those of a collective, or a send and its receive."""
    for log in active:
        log.note_done(calls)


def refuse_real(backend: str) -> None:
    """For those who start processes: what these call would be missing in the logs."""
    if active:
        raise RuntimeError(
            f"CommunicationLog: it records virtual ranks only, and ranks of {backend!r} start; "
            "torch.profiler records those"
        )
