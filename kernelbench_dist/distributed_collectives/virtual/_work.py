"""What a call of communication gives back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from kernelbench_dist.distributed_collectives.virtual import _streams
from kernelbench_dist.distributed_collectives.virtual._calls import check_unchanged

if TYPE_CHECKING:
    from kernelbench_dist.distributed_collectives.virtual._baton import Rank
    from kernelbench_dist.distributed_collectives.virtual._calls import Call


class VirtualWork(dist.Work):
    """The work of one call, or of several that were made as one."""

    def __init__(self, rank: Rank, calls: Sequence[Call]) -> None:
        super().__init__()
        self._rank = rank
        self._calls = calls

    def wait(self, timeout: Any = None) -> bool:
        for call in self._calls:
            if not call.done:
                self._rank.run.wait(self._rank, call)
            if call.streams is not None:
                _streams.after(call.streams)
            if call.versions:
                check_unchanged([call])
                call.versions = []  # from now on it may be changed
        return True

    def is_completed(self) -> bool:
        if not self._done():
            # Or a loop that polls would never end.
            self._rank.run.yield_turn(self._rank, next(c for c in self._calls if not c.done))
        return self._done()

    def is_success(self) -> bool:
        return self._done()

    def _done(self) -> bool:
        return all(call.done for call in self._calls)

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        """The rank, in the group, that a receive from any source has met."""
        root = self._calls[0].root
        if root is None:
            raise RuntimeError("source_rank: this is no receive that is done")
        return root

    _source_rank = source_rank

    def result(self) -> list[Tensor]:
        self.wait()
        return [tensor for call in self._calls for tensor in call.outputs]

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        # A future that is done: its callbacks run in the thread of the rank that adds them.
        result = self.result()
        devices: list[int | str | torch.device] = sorted(
            {t.device for t in result if t.is_cuda}, key=str
        )
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future(devices=devices)
        future.set_result(result)
        return future


class NoWork(VirtualWork):
    """Within a coalescing region: the region's own work is what is waited for."""

    def wait(self, timeout: Any = None) -> bool:
        return True
