"""What virtual ranks say to each other: a log of their calls, its table, and a trace to look at."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from kernelbench_dist.distributed_collectives._current import current_rank
from kernelbench_dist.distributed_collectives.virtual import _log

if TYPE_CHECKING:
    from kernelbench_dist.distributed_collectives.virtual._calls import Call

__all__ = ["CommunicationEntry", "CommunicationLog"]


@dataclass(frozen=True)
class CommunicationEntry:
    """One call of one rank.

    rank: the rank that called, in the world.
    operation: as in the errors of virtual ranks: "all_reduce", "all_gather_single", "send" ...
    bytes: the payload that the rank gives in, its part for itself included: of all tensors of the
        input. 0 for a rank that gives nothing: any but the source of a broadcast or a scatter, and
        at a barrier. A receive counts what it takes. This is no traffic on a wire, which depends
        on a backend's algorithm.
    shapes, dtypes: of the tensors given in, or where there are none, of those that take the result.
    group, group_ranks: its name in errors, and its ranks in the world.
    number: the rank's n-th collective in this group, from 1, as in errors; 0 of sends and receives.
    call: the rank's n-th call of communication in the run, from 1: what `Faults.fail` counts.
    peer: of a send or a receive, the other rank in the world; None where a receive from any source
        has not met one.
    line: of the program, "file:number".
    called_s: when the rank called, on the host's clock, in seconds from the start of the log.
    done_s: when the result was there, or on CUDA, when its computation was launched; None if it
        was not done in the time of the log.

    The times show an order of events. Virtual ranks run one at a time on one device: how long a
    call takes here says nothing about real ranks.
    """

    rank: int
    operation: str
    bytes: int
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    group: str
    group_ranks: tuple[int, ...]
    number: int
    call: int
    peer: int | None
    line: str
    called_s: float
    done_s: float | None


class CommunicationLog(contextlib.AbstractContextManager["CommunicationLog"]):
    """Records each collective, send and receive of virtual ranks while it is entered.

    Around `run_spmd` it records all ranks; within a rank, that rank's calls. Logs may be nested:
    each records. What it has recorded stays after an error; entered again it starts afresh.
    Object collectives are there as the calls that torch makes of them, and a coalesced region as
    its calls. Ranks in processes (gloo, NCCL) are not recorded: DDP's reducer calls their groups
    from C++, past any place where Python could look; torch.profiler sees those.

    Raises:
        RuntimeError: the process has a real process group; it is entered twice at a time.

    >>> import torch, torch.distributed as dist
    >>> from kernelbench_dist.distributed_collectives import run_spmd
    >>> def program():
    ...     dist.all_reduce(torch.ones(8))
    ...     dist.broadcast(torch.ones(2), src=1)
    >>> with CommunicationLog() as log:
    ...     _ = run_spmd(program, 4)
    >>> print(log)
    ranks   operation   calls  bytes
    0-3     all_reduce      1     32
    0, 2-3  broadcast       1      0
    1       broadcast       1      8
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._entries: list[CommunicationEntry] = []
        self._open: dict[int, tuple[int, Call]] = {}  # by id: the entry's place, and the call
        self._pairs: list[tuple[int, int]] = []  # places of sends and of their receives
        self._rank = current_rank()
        self._started = time.perf_counter()
        self._lasted = 0.0

    def __enter__(self) -> CommunicationLog:
        if any(log is self for log in _log.active):
            raise RuntimeError("CommunicationLog: this log records already; make another one")
        _refuse_a_real_group()
        self._reset()
        _log.active.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lasted = self._now()
        self._look_again()
        self._open.clear()  # its calls hold tensors of the program
        _log.active[:] = [log for log in _log.active if log is not self]
        if error is None:
            _refuse_a_real_group()

    @property
    def entries(self) -> list[CommunicationEntry]:
        """All calls, in the order in which they were made."""
        self._look_again()
        return list(self._entries)

    def table(self) -> str:
        """Calls and bytes a rank, by kind; ranks with the same figures share a row."""
        figures: dict[tuple[str, int], tuple[int, int]] = {}
        for entry in self._entries:
            calls, nbytes = figures.get((entry.operation, entry.rank), (0, 0))
            figures[entry.operation, entry.rank] = calls + 1, nbytes + entry.bytes
        rows: dict[tuple[str, int, int], list[int]] = {}
        for (operation, rank), same in sorted(figures.items()):
            rows.setdefault((operation, *same), []).append(rank)
        if not rows:
            return "no calls of communication"
        lines = [("ranks", "operation", "calls", "bytes")]
        for (operation, calls, nbytes), ranks in rows.items():
            lines.append((_ranges(ranks), operation, f"{calls:,}", f"{nbytes:,}"))
        a, b, c, d = (max(map(len, column)) for column in zip(*lines, strict=True))
        return "\n".join(f"{p:<{a}}  {q:<{b}}  {r:>{c}}  {s:>{d}}" for p, q, r, s in lines)

    def __str__(self) -> str:
        return self.table()

    def to_chrome(self, path: str | os.PathLike[str]) -> None:
        """Write a trace that chrome://tracing and ui.perfetto.dev show.

        Each rank is a row (of several lines where its calls overlap), and an arrow leads from a
        send to its receive. A call that was not done reaches to the end of the log.
        """
        entries = self.entries
        end = self._lasted or self._now()
        lanes = _lanes(entries, end)
        events: list[dict[str, Any]] = []
        for rank in sorted({entry.rank for entry in entries}):
            head = {"ph": "M", "pid": rank}
            events.append({**head, "name": "process_name", "args": {"name": f"rank {rank}"}})
            events.append({**head, "name": "process_sort_index", "args": {"sort_index": rank}})
        events += [_slice(*of, end) for of in zip(entries, lanes, strict=True)]
        for number, (sent, received) in enumerate(self._pairs):
            start = entries[sent].called_s
            arrive = max(start, entries[received].called_s)  # within both calls
            for place, at, kind in (
                (sent, start, {"ph": "s"}),
                (received, arrive, {"ph": "f", "bp": "e"}),
            ):
                where = {"pid": entries[place].rank, "tid": lanes[place], "ts": _us(at)}
                events.append({"name": "message", "cat": "message", "id": number, **where, **kind})
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)

    # Called by the ranks

    def note(self, call: Call) -> None:
        """A rank makes a call."""
        if self._rank is not None and call.rank is not self._rank:
            return
        given = call.inputs or call.outputs
        operation = call.name.split()[0]
        silent = operation == "broadcast" and call.group.ranks[call.root or 0] != call.rank.index
        counted = call.outputs if operation == "recv" else () if silent else call.inputs
        self._open[id(call)] = len(self._entries), call
        self._entries.append(
            CommunicationEntry(
                rank=call.rank.index,
                operation=operation,
                bytes=sum(t.numel() * t.element_size() for t in counted),
                shapes=tuple(tuple(t.shape) for t in given),
                dtypes=tuple(t.dtype for t in given),
                group=call.group.name,
                group_ranks=call.group.ranks,
                number=0,
                call=call.rank.calls,
                peer=None,
                line=call.line,
                called_s=self._now(),
                done_s=None,
            )
        )

    def note_done(self, calls: Sequence[Call]) -> None:
        """Calls that have met are computed."""
        now = self._now()
        places = []
        for call in calls:
            place, _ = self._open.pop(id(call), (None, None))
            if place is not None:
                self._entries[place] = replace(_as_it_is(self._entries[place], call), done_s=now)
                places.append(place)
        if len(places) == 2 and self._entries[places[0]].operation == "send":
            self._pairs.append((places[0], places[1]))

    def _look_again(self) -> None:
        for place, call in self._open.values():
            self._entries[place] = _as_it_is(self._entries[place], call)

    def _now(self) -> float:
        return time.perf_counter() - self._started


def _as_it_is(entry: CommunicationEntry, call: Call) -> CommunicationEntry:
    """With what is not known yet when a call begins."""
    peer = None
    if entry.operation in ("send", "recv"):
        named = call.name.split()[-1]
        if named.isdigit():
            peer = int(named)
        elif entry.operation == "recv" and call.root is not None:  # it has met one from any source
            peer = call.group.ranks[call.root]
    return replace(entry, number=call.number, peer=peer)


def _refuse_a_real_group() -> None:
    if current_rank() is None and dist.is_initialized():
        raise RuntimeError(
            "CommunicationLog: it records virtual ranks only, and this process has a process group "
            f"of {dist.get_backend()!r}; torch.profiler records what that does"
        )


def _ranges(ranks: Sequence[int]) -> str:
    """
    >>> _ranges([0, 2, 3, 4, 7])
    '0, 2-4, 7'
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _lanes(entries: Sequence[CommunicationEntry], end: float) -> list[int]:
    """A line of its rank's row for each call, so that no two on a line overlap."""
    until: dict[int, list[float]] = {}
    lanes = []
    for entry in entries:
        lines = until.setdefault(entry.rank, [])
        free = (i for i, last in enumerate(lines) if last <= entry.called_s)
        lane = next(free, len(lines))
        lines[lane : lane + 1] = [end if entry.done_s is None else entry.done_s]
        lanes.append(lane)
    return lanes


def _slice(entry: CommunicationEntry, lane: int, end: float) -> dict[str, Any]:
    done = end if entry.done_s is None else entry.done_s
    return {
        "ph": "X",
        "name": entry.operation,
        "cat": entry.group,
        "pid": entry.rank,
        "tid": lane,
        "ts": _us(entry.called_s),
        "dur": _us(done - entry.called_s),
        "args": {
            "bytes": entry.bytes,
            "shapes": [list(shape) for shape in entry.shapes],
            "dtypes": [str(dtype).removeprefix("torch.") for dtype in entry.dtypes],
            "group": entry.group,
            "group_ranks": list(entry.group_ranks),
            "number": entry.number,
            "call": entry.call,
            "peer": entry.peer,
            "line": entry.line,
            "done": entry.done_s is not None,
        },
    }


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
