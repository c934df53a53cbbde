"""All ranks of one side in one worker, as virtual ranks with one channel to the judge.

The ranks live as long as the worker: a group that a module makes when it is built is there when it
is called. A request goes to all of them: rank 0 reads it, each answers for itself, and rank 0 sends
the answers when the last is there. Who waits for a request, or for the others' answers, waits as in
any call of communication, so that ranks which cannot go on are found at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.distributed as dist

from kernelbench_dist.distributed_collectives._errors import RankError
from kernelbench_dist.distributed_collectives.virtual._baton import Aborted, Run
from kernelbench_dist.harness._channel import Channel, ChannelError
from kernelbench_dist.harness._ranks import Call, OwnProcess, Reply, pack, unpack

T = TypeVar("T")


class Answering(Protocol):
    """One rank of one side."""

    def requests(self) -> dict[str, Callable[[dict[str, Any], list[torch.Tensor]], Reply]]: ...


class VirtualRank(OwnProcess):
    """A rank that shares its process with all others."""

    def __init__(self, rank: int, world: World) -> None:
        super().__init__(rank, world.size)
        self.world = world

    def join(self, rendezvous: str | None) -> None:
        dist.init_process_group("virtual")

    def together(self, own: Sequence[Call]) -> list[Call]:
        """Rank 0's are calls of all ranks."""
        if self.rank:
            return list(own)
        return [partial(self.world.call, i, call) for i, call in enumerate(own)]

    def conduct(
        self, own: Sequence[Call], work: Callable[[], T], results: list[Any] | None = None
    ) -> T:
        """Rank 0 works, and the others make the calls that it makes."""
        if self.rank:
            return cast(T, self.world.follow(self.rank, own, results))
        return self.world.lead(work)


class World:
    """The virtual ranks of one worker."""

    def __init__(self, channel: Channel, world_size: int, device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda.set_device(device)
            device = torch.device("cuda", torch.cuda.current_device())
        self.channel = channel
        self.size = world_size
        # No watchdog: waiting for the judge is no stall, and the judge has a limit for the rest.
        self.run = Run(world_size, device, watchdog_s=math.inf)
        self.ranks = [VirtualRank(rank, self) for rank in range(world_size)]
        self.over = False
        self.number = 0  # of the request under way
        self.parts: list[Reply] = []
        self.answers: list[Reply | None] = []
        # The calls that rank 0 has had made in this request, and what came of its work.
        self.ordered = self.followed = self.index = 0
        self.stream: Any = None
        self.finished = False
        self.value: Any = None
        self.broken: BaseException | None = None

    def serve(self, served: Sequence[Answering]) -> None:
        """Answer until the judge closes the channel. RankError: a rank failed, and all ended."""
        self.run.start([partial(self._serve, r, rank) for r, rank in enumerate(served)])

    def _serve(self, rank: int, served: Answering) -> None:
        requests = served.requests()
        for number in itertools.count(1):
            if rank == 0:
                self._read()
            else:
                self._wait(rank, partial(self._is_asked, number))
            if self.over:
                return
            message, tensors = self.parts[rank]
            try:
                self.answers[rank] = requests[message["do"]](message, tensors)
            except (Aborted, RankError):
                raise
            # Not Exception alone: to a run, a rank that exits has come to its end.
            except BaseException as error:
                raise RankError(rank, f"rank {rank}: {error}") from error
            del message, tensors
            if rank == 0:
                self._wait(0, lambda: None not in self.answers)
                self._send()

    def _read(self) -> None:
        """The next request, read while all others wait."""
        try:
            message, tensors = self.channel.receive()
            parts = unpack(message, tensors, self.size)
        except ChannelError:
            self.over, self.number = True, self.number + 1
            return
        self.parts = [({**message, **own}, given) for own, given in parts]
        self.answers = [None] * self.size
        self.ordered = self.followed = 0
        self.finished = False
        self.number += 1

    def _send(self) -> None:
        self.run._look_for_what_is_left()  # calls that no other rank has met
        self.run.check()
        fields, tensors = pack([answer for answer in self.answers if answer is not None])
        self.parts, self.answers = [], []
        self.channel.send({"ok": True, **fields}, tensors)

    # Work that one rank does for all

    def lead(self, work: Callable[[], T]) -> T:
        value = work()
        self.value, self.finished = value, True
        return value

    def call(self, index: int, own: Call) -> Any:
        """In rank 0: have all others make their call of this number, too.

        One that raises is the last: the others may have come any way into theirs.
        """
        if self.broken is not None:
            raise self.broken
        self.index = index
        self.stream = torch.cuda.current_stream() if self.run.device.type == "cuda" else None
        self.ordered += 1
        try:
            result = own()
        except BaseException as error:
            self.broken = error
            raise
        wanted = self.ordered * (self.size - 1)
        self._wait(0, lambda: self.followed == wanted)
        return result

    def follow(self, rank: int, own: Sequence[Call], results: list[Any] | None) -> Any:
        """In any other rank: make rank 0's calls until it has done its work; what that came to."""
        for number in itertools.count(1):
            self._wait(rank, partial(self._is_ordered, number))
            if self.ordered < number:
                return self.value
            with torch.cuda.stream(self.stream):
                result = own[self.index]()
            if results is not None:
                results[self.index] = result
            del result
            self.followed += 1

    def _is_asked(self, number: int) -> bool:
        return self.number >= number

    def _is_ordered(self, number: int) -> bool:
        return self.ordered >= number or self.finished

    def _wait(self, rank: int, ready: Callable[[], bool]) -> None:
        self.run.wait(self.run.ranks[rank], _Until(ready))


class _Until:
    """What a rank waits for that has done its part: to who reads it, it has returned."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self.ready = ready

    def describe(self) -> str:
        return "has returned"
