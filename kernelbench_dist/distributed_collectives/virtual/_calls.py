"""Calls of communication: what ranks ask for, how they meet, and whether they agree.

A collective is computed when the last rank of its group has called it, in that rank's thread; the
others have it then, and block only where they wait for it. The k-th collective that one rank calls
on a group meets the k-th of every other. Sends meet receives in the order of their calls.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import typing_extensions
from torch import Tensor

from kernelbench_dist.distributed_collectives._errors import MismatchError
from kernelbench_dist.distributed_collectives.virtual import _streams

if TYPE_CHECKING:
    from kernelbench_dist.distributed_collectives.virtual._baton import Rank

_HIDDEN = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    # Between torch's context managers and deprecated functions, and who uses them.
    contextlib.contextmanager.__code__.co_filename,
    typing_extensions.deprecated.__call__.__code__.co_filename,
)
_is_hidden: dict[str, bool] = {}


def users_line() -> str:
    """The innermost line that is neither torch's nor this package's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not _hidden(frame):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "a thread of torch"


def line_of(error: BaseException) -> str | None:
    """The innermost line of the program in an error's traceback, as `users_line` gives it."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if not _hidden(trace.tb_frame):
            line = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line


def _hidden(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    hidden = _is_hidden.get(name)
    if hidden is None:
        hidden = _is_hidden[name] = name.startswith(("<frozen", *_HIDDEN))
    return hidden


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
        self.stream: _streams.Name | None = None
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
        parts = _differences(dict(first.agree), dict(call.agree))
        different = f"they differ in {'; '.join(parts)}"
    raise MismatchError(
        call.rank.index,
        f"rank {call.rank.index} does not fit rank {first.rank.index} in call {call.number} of "
        f"{call.group.name}: {different}\n"
        f"  rank {first.rank.index}: {first.what()} at {first.line}\n"
        f"  rank {call.rank.index}: {call.what()} at {call.line}",
    )


def _differences(values: dict[str, Any], others: dict[str, Any]) -> Iterator[str]:
    count, other = _number_of_tensors(values), _number_of_tensors(others)
    if count != other:
        yield f"number of tensors: {count} and {other}"
    for name in {**values, **others}:
        if count != other and name in ("shape", "shapes", "dtype", "dtypes", "device", "strides"):
            continue
        if values.get(name) != others.get(name):
            # Only strides are not always given.
            one, another = values.get(name, "contiguous"), others.get(name, "contiguous")
            yield f"{name}: {_say(one)} and {_say(another)}"


def _number_of_tensors(values: dict[str, Any]) -> int:
    dtype = values.get("dtypes", values.get("dtype", []))
    return len(dtype) if isinstance(dtype, list) else 1


def check_pair(send: Call, receive: Call) -> None:
    """A send and the receive that it meets have the same shape and dtype.

    A scalar and a tensor with one element fit: torch's pipelines send the one to the other.
    """
    if send.agree == receive.agree:
        return
    given, taken = dict(send.agree), dict(receive.agree)
    shapes = given.pop("shape", None), taken.pop("shape", None)
    hint = ""
    if given == taken and None not in shapes and shapes[0].numel() == shapes[1].numel():
        if () in shapes and shapes[0].numel() == 1:
            return
        hint = " (as many elements in another shape are refused; view one as the other)"
    raise MismatchError(
        send.rank.index,
        f"a send and its receive do not fit{hint}:\n"
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


def _say(value: Any) -> str:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch.Size):
        return str(tuple(value))
    if isinstance(value, list):
        return ", ".join(map(_say, value)) or "none"
    return str(value)


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 3 and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"
