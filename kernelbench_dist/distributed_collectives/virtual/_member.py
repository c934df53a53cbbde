"""One rank's membership of a group: where its calls begin, and where they are computed."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence

import torch

from kernelbench_dist.distributed_collectives.virtual import (
    _checks,
    _log,
    _memory,
    _portable,
    _streams,
)
from kernelbench_dist.distributed_collectives.virtual._baton import Rank
from kernelbench_dist.distributed_collectives.virtual._calls import (
    Call,
    Meetings,
    check_pair,
    check_unchanged,
    users_line,
    versions,
)
from kernelbench_dist.distributed_collectives.virtual._compute import COMPUTE, message
from kernelbench_dist.distributed_collectives.virtual._work import NoWork, VirtualWork


class Member:
    def __init__(self, rank: Rank, place: int, meetings: Meetings) -> None:
        self.me = rank
        self.place = place
        self.meetings = meetings
        self.number = 0  # of this rank's collectives on the group
        self.pending = rank.pending
        self.region: list[Call] | None = None  # calls within a coalescing region

    def collective(self, call: Call) -> VirtualWork:
        call.number = self.number + 1
        self.begin(call)
        self.number += 1
        calls = self.meetings.join(self.place, self.number, call)
        if calls is not None:
            if self.meetings.strict:
                check_unchanged(calls)
                _memory.check_apart(calls)
            order = self.me.run.order
            self.compute(calls, lambda: COMPUTE[call.name](calls, order))
        return self.work(call)

    def begin(self, call: Call) -> None:
        me = self.me
        if threading.get_ident() != me.thread.ident:  # type: ignore[union-attr]
            raise RuntimeError(
                f"{call.name}: a thread of rank {me.index}'s program uses its group; only the "
                "thread in which the rank runs may"
            )
        me.run.check()
        call.rank, call.group, call.line = me, self.meetings, users_line()
        if me.run.portable:
            _portable.check(call)
        if self.meetings.strict:
            if len(call.outputs) > 1:
                _memory.check_outputs(call)
            if self.pending:
                _memory.check_pending(call, self.pending)
        me.run.progress += 1
        me.calls += call.name != "new_group"
        call.versions = versions(call.inputs)
        call.stream = _streams.of((*call.inputs, *call.outputs))
        if me.run.schedule.called(me):
            me.run.yield_turn(me)
        if call.outputs and torch.is_grad_enabled():
            _warn_of_gradients(call)
        if _log.active and call.name != "new_group":
            _log.record(call, len(self.meetings.ranks))

    def compute(self, calls: Sequence[Call], compute: Callable[[], object]) -> None:
        streams = [call.stream for call in calls if call.stream is not None]
        several = bool(streams) and _streams.before(streams)
        if not any(_memory.has_no_values(t) for call in calls for t in call.outputs):
            with torch.no_grad(), _checks.no_modes():
                compute()
        meeting = _streams.Meeting(streams[0][0]) if several else None
        for call in calls:
            call.streams = meeting
            call.done = True
            call.meeting = None
            call.rank.pending.pop(call, None)
        self.me.run.progress += 1
        if _log.active and calls[0].name != "new_group":
            _log.done(calls)

    def work(self, call: Call) -> VirtualWork:
        if not call.done:
            self.pending[call] = None
        if self.region is not None:
            self.region.append(call)
            return NoWork(self.me, [call])
        return VirtualWork(self.me, [call])

    def move(self, send: Call, receive: Call) -> None:
        check_pair(send, receive)
        if self.meetings.strict:
            _memory.check_apart([send, receive])
            check_unchanged([send])
        receive.root = send.root
        self.compute([send, receive], lambda: message(send, receive))


_warned: set[str] = set()


def _warn_of_gradients(call: Call) -> None:
    if call.line not in _warned and any(t.requires_grad for t in call.outputs):
        _warned.add(call.line)
        warnings.warn(
            f"{call.name} at {call.line} changes a tensor that requires grad in place, and "
            "autograd does not see it: the gradient is that of no communication. "
            "distributed_collectives.functional has collectives with exact gradients; "
            "torch.no_grad() says that it is meant",
            stacklevel=6,
        )
