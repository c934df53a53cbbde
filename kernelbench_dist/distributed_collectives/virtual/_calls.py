"""Calls of communication: what ranks ask for, how they meet, and whether they agree.

A collective is computed when the last rank of its group has called it, in that rank's thread; the
others have it then, and block only where they wait for it. The k-th collective that one rank calls
on a group meets the k-th of every other. Sends meet receives in the order of their calls.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernelbench_dist.distributed_collectives._errors import MismatchError
from kernelbench_dist.distributed_collectives.virtual import _streams

if TYPE_CHECKING:
    from kernelbench_dist.distributed_collectives.virtual._baton import Rank

_HIDDEN = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
)
_is_hidden: dict[str, bool] = {}


def users_line() -> str:
    """The innermost line that is neither torch's nor this package's."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        hidden = _is_hidden.get(name)
        if hidden is None:
            hidden = _is_hidden[name] = name.startswith(("<frozen", *_HIDDEN))
        if not hidden:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "a thread of torch"


class Call:
    """One rank's part in a collective, or a send or a receive.

    agree: what all ranks must give alike, as (name, value).
    """

    __slots__ = (
        "agree", "done", "group", "inputs", "line", "meeting", "name", "number", "op", "outputs",
        "rank", "root", "sizes", "stream", "streams", "tag", "versions",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        inputs: Sequence[Tensor] = (),
        outputs: Sequence[Tensor] = (),
        *,
        agree: tuple[tuple[str, Any], ...] = (),
        op: Any = None,
        root: int | None = None,
        sizes: Any = None,
    ) -> None:
        self.name = name
        self.inputs = inputs
        self.outputs = outputs
        self.agree = agree
        self.op = op
        self.root = root
        self.sizes = sizes
        self.done = False
        self.meeting: Meeting | None = None
        self.group: Meetings
        self.rank: Rank
        self.number = 0
        self.tag = 0
        self.line = ""
        self.stream: Any = None
        self.streams: _streams.Meeting | None = None
        self.versions: list[int | None] = []

    # As what a rank waits for

    def ready(self) -> bool:
        return self.done

    def describe(self) -> str:
        text = f"{self.what()} at {self.line}"
        if self.meeting is not None:
            late = [self.group.ranks[i] for i in self.meeting.missing()]
            if late:
                text += f"; not called yet by {_ranks(late)}"
        return text

    def what(self) -> str:
        values = [f"{name} {_say(value)}" for name, value in self.agree]
        if self.tag:
            values.append(f"tag {self.tag}")
        # Sends and receives are not numbered: they meet by their tags.
        where = f"call {self.number} of" if self.number else "in"
        return f"{self.name}({', '.join(values)}), {where} {self.group.name}"


class Meeting:
    """One collective of a group, while its ranks arrive."""

    __slots__ = ("calls", "first", "missing_count")

    def __init__(self, size: int) -> None:
        self.calls: list[Call | None] = [None] * size
        self.first: Call | None = None
        self.missing_count = size

    def missing(self) -> list[int]:
        return [i for i, call in enumerate(self.calls) if call is None]


class Meetings:
    """A group, as all of its ranks share it."""

    def __init__(self, name: str, ranks: tuple[int, ...], strict: bool) -> None:
        self.name = f"group {name} of {_ranks(ranks)}" if name.isdigit() else name
        if name == "0":
            self.name = "the default group"
        self.ranks = ranks
        self.strict = strict
        self.open: dict[int, Meeting] = {}
        self.sends: dict[tuple[int, int], deque[Call]] = {}  # by (destination, tag)
        self.receives: dict[tuple[int, int], deque[Call]] = {}

    def join(self, place: int, number: int, call: Call) -> list[Call] | None:
        """Put in a rank's call; all calls, where it is the last."""
        meeting = self.open.get(number)
        if meeting is None:
            meeting = self.open[number] = Meeting(len(self.ranks))
            meeting.first = call
        else:
            assert meeting.first is not None
            _compare(meeting.first, call)
        meeting.calls[place] = call
        meeting.missing_count -= 1
        call.meeting = meeting
        if meeting.missing_count:
            return None
        del self.open[number]
        return meeting.calls  # type: ignore[return-value]

    def meet_receive(self, source: int, destination: int, tag: int, call: Call) -> Call | None:
        """The receive that a send meets, or None: then the send is kept."""
        waiting = self.receives.get((destination, tag), ())
        for receive in waiting:
            if receive.root in (None, source):
                waiting.remove(receive)  # type: ignore[union-attr]
                return receive
        self.sends.setdefault((destination, tag), deque()).append(call)
        return None

    def meet_send(self, source: int | None, destination: int, tag: int, call: Call) -> Call | None:
        """The send that a receive meets (from any source: the one called first), or None."""
        waiting = self.sends.get((destination, tag), ())
        for send in waiting:
            if source in (None, send.root):
                waiting.remove(send)  # type: ignore[union-attr]
                return send
        self.receives.setdefault((destination, tag), deque()).append(call)
        return None

    def left(self) -> list[Call]:
        """Calls that nobody has met."""
        found = [c for m in self.open.values() for c in m.calls if c is not None]
        for kept in (self.sends, self.receives):
            found += [call for calls in kept.values() for call in calls]
        return found


def _compare(first: Call, call: Call) -> None:
    if first.name == call.name and first.agree == call.agree:
        return
    if first.name != call.name:
        different = f"the operations differ: {first.name} and {call.name}"
    else:
        values, own = dict(first.agree), dict(call.agree)
        parts = [
            f"{name}: {_say(values.get(name))} and {_say(own.get(name))}"
            for name in {**values, **own}
            if values.get(name) != own.get(name)
        ]
        different = f"they differ in {'; '.join(parts)}"
    raise MismatchError(
        call.rank.index,
        f"rank {call.rank.index} does not fit rank {first.rank.index} in call {call.number} of "
        f"{call.group.name}: {different}\n"
        f"  rank {first.rank.index}: {first.what()} at {first.line}\n"
        f"  rank {call.rank.index}: {call.what()} at {call.line}",
    )


def check_pair(send: Call, receive: Call) -> None:
    """A send and the receive that it meets have the same shape and dtype."""
    if send.agree == receive.agree:
        check_apart([send, receive])
        return
    raise MismatchError(
        send.rank.index,
        "a send and its receive do not fit:\n"
        f"  rank {send.rank.index}: {send.what()} at {send.line}\n"
        f"  rank {receive.rank.index}: {receive.what()} at {receive.line}",
    )


def versions(tensors: Sequence[Tensor]) -> list[int | None]:
    """What shows that a tensor is changed; not of views, which count with others of their base."""
    return [None if t.is_inference() or t._is_view() else t._version for t in tensors]


def check_unchanged(calls: Sequence[Call]) -> None:
    """What a rank gave to a call is as it was then."""
    for call in calls:
        for tensor, version in zip(call.inputs, call.versions, strict=False):
            if version is not None and tensor._version != version:
                raise MismatchError(
                    call.rank.index,
                    f"rank {call.rank.index} changed a tensor of its {call.what()} at {call.line} "
                    "before it was done: wait for the work first",
                )


def check_apart(calls: Sequence[Call]) -> None:
    """No two ranks have their results in the same place, as happens with one tensor for all."""
    places = sorted(
        (t.data_ptr(), t.data_ptr() + t.numel() * t.element_size(), i)
        for i, call in enumerate(calls)
        for t in (call.outputs or (call.inputs if call.name.startswith("send") else ()))
        if t.numel()
    )
    for (_, end, i), (start, _, k) in itertools.pairwise(places):
        if start < end and i != k:
            one, other = sorted((calls[i], calls[k]), key=lambda call: call.rank.index)
            raise MismatchError(
                other.rank.index,
                f"ranks {one.rank.index} and {other.rank.index} have the same memory in "
                f"{other.what()}: give each rank a tensor of its own\n"
                f"  rank {one.rank.index}: {one.line}\n  rank {other.rank.index}: {other.line}",
            )


def _say(value: Any) -> str:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch.Size):
        return str(tuple(value))
    if isinstance(value, list):
        return ", ".join(map(_say, value))
    return str(value)


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 3 and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"
