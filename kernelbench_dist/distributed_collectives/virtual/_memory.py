"""Who reads and writes which memory: tensors overlap where their bytes do.

Real backends run calls beside each other, and read and write in an order of their own. A tensor
that is contiguous, or dense in another order of dimensions, has all bytes from its first to its
last; no others reach a real backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from kernelbench_dist.distributed_collectives._errors import MismatchError
from kernelbench_dist.distributed_collectives.virtual._calls import Call

if TYPE_CHECKING:
    from kernelbench_dist.distributed_collectives.virtual._group import VirtualGroup

_Span = tuple[int, int]


def has_no_values(tensor: Tensor) -> bool:
    """Meta and fake tensors: a call on them moves nothing, and real backends take it too."""
    return tensor.is_meta or (type(tensor) is not Tensor and isinstance(tensor, FakeTensor))


def spans(tensors: Sequence[Tensor]) -> list[_Span]:
    """The first byte of each tensor, and the one behind its last."""
    return [
        (start, start + t.nbytes)
        for t in tensors
        if (type(t) is Tensor or not has_no_values(t)) and (start := t.data_ptr())
    ]


def check_outputs(call: Call) -> None:
    if _overlap_themselves(spans(call.outputs)):
        raise ValueError(
            f"{call.what()} at {call.line}: two of its outputs share memory, and one result would "
            "replace the other; give each a tensor of its own"
        )


def check_pending(call: Call, pending: Iterable[Call]) -> None:
    """What a call writes, no pending one reads or writes; and the other way round."""
    reads, writes = spans(call.inputs), spans(_written(call))
    for other in pending:
        others = spans(_written(other))
        if _overlap(writes, others):
            does, did = "writes", "writes"
        elif _overlap(reads, others):
            does, did = "reads", "writes"
        elif writes and _overlap(writes, spans(other.inputs)):
            does, did = "writes", "reads"
        else:
            continue
        raise ValueError(
            f"rank {call.rank.index} {does} memory in {call.what()} at {call.line} that its "
            f"{other.what()} at {other.line} {did}, and that one is not done: real backends may "
            "run the two side by side; wait for the first, or give each a tensor of its own"
        )


def check_apart(calls: Sequence[Call]) -> None:
    """No two ranks have their results in the same place, as happens with one tensor for all."""
    places = sorted(
        (*span, i)
        for i, call in enumerate(calls)
        for span in spans(call.outputs or (call.inputs if call.name.startswith("send") else ()))
    )
    last_end, last = 0, -1
    for start, end, i in places:
        if start < last_end and i != last:
            one, other = sorted((calls[i], calls[last]), key=lambda call: call.rank.index)
            raise MismatchError(
                other.rank.index,
                f"ranks {one.rank.index} and {other.rank.index} have the same memory in "
                f"{other.what()}: give each rank a tensor of its own\n"
                f"  rank {one.rank.index}: {one.line}\n  rank {other.rank.index}: {other.line}",
            )
        if end > last_end:
            last_end, last = end, i


def check_in_place(
    group: VirtualGroup,
    fn: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    accepted: Sequence[_Span] = (),
) -> None:
    """Inputs and outputs share no memory, but for those that lie exactly at an `accepted` place."""
    if not group.meetings.strict:
        return
    left = [span for span in spans(inputs) if span not in accepted]
    right = [span for span in spans(outputs) if span not in accepted]
    if _overlap(left, right):
        but = "; the rank's own part, and nothing else, may lie in place" if accepted else ""
        raise ValueError(
            f"{fn}: the input's memory is the output's too{but}; use a tensor of its own"
        )


def own_parts(group: VirtualGroup, wholes: Sequence[Tensor]) -> list[_Span]:
    """Of tensors that hold one part a rank, where this rank's is."""
    found = []
    for start, end in spans(wholes):
        part = (end - start) // group.size()
        found.append((start + group.place * part, start + (group.place + 1) * part))
    return found


def _written(call: Call) -> Sequence[Tensor]:
    if call.name == "broadcast" and call.root is not None:
        # A source's tensor is only read.
        return () if call.group.ranks[call.root] == call.rank.index else call.outputs
    return call.outputs


def _overlap(some: Sequence[_Span], others: Sequence[_Span]) -> bool:
    if not some or not others:
        return False
    ends = [0, 0]
    for start, end, which in sorted([*((*s, 0) for s in some), *((*s, 1) for s in others)]):
        if start < ends[1 - which]:
            return True
        ends[which] = max(ends[which], end)
    return False


def _overlap_themselves(spans: list[_Span]) -> bool:
    last_end = 0
    for start, end in sorted(spans):
        if start < last_end:
            return True
        last_end = max(last_end, end)
    return False
