"""The log of what virtual ranks say to each other."""

from __future__ import annotations

import gc
import itertools
import json
import re
import weakref
from collections import Counter

import pytest
import torch
import torch.distributed as dist

from kernelbench_dist.distributed_collectives import RankError, run_spmd
from kernelbench_dist.distributed_collectives.communication_log import CommunicationLog
from kernelbench_dist.distributed_collectives.virtual import _log


def every_operation():
    """Three ranks."""
    rank = dist.get_rank()
    x = torch.ones(4)  # 16 bytes
    dist.all_reduce(x)
    dist.broadcast(x, src=2)
    dist.reduce(x, dst=1)
    dist.all_gather([torch.empty(4) for _ in range(3)], x)
    dist.all_gather_into_tensor(torch.empty(12), x)
    dist.gather(x, [torch.empty(4) for _ in range(3)] if rank == 0 else None, dst=0)
    rows = [torch.zeros(2, dtype=torch.int64) for _ in range(3)]
    dist.scatter(torch.empty(2, dtype=torch.int64), rows if rank == 1 else None, src=1)
    dist.reduce_scatter(torch.empty(2), [torch.ones(2) for _ in range(3)])
    dist.reduce_scatter_tensor(torch.empty(2), torch.ones(6))
    dist.all_to_all_single(torch.empty(6, dtype=torch.half), torch.ones(6, dtype=torch.half))
    dist.all_to_all([torch.empty(1) for _ in range(3)], [torch.ones(1) for _ in range(3)])
    dist.barrier()
    if rank == 0:
        dist.send(torch.ones(5, dtype=torch.float64), 2)
    if rank == 2:
        dist.recv(torch.empty(5, dtype=torch.float64), 0)


BYTES = {
    "all_reduce": [16, 16, 16],
    "broadcast": [0, 0, 16],
    "reduce": [16, 16, 16],
    "all_gather": [16, 16, 16],
    "all_gather_single": [16, 16, 16],
    "gather": [16, 16, 16],
    "scatter": [0, 48, 0],
    "reduce_scatter": [24, 24, 24],
    "reduce_scatter_single": [24, 24, 24],
    "all_to_all_single": [12, 12, 12],
    "all_to_all": [12, 12, 12],
    "barrier": [0, 0, 0],
    "send": [40, None, None],
    "recv": [None, None, 40],
}


def test_bytes_are_what_a_rank_gives_in_and_a_receive_takes():
    with CommunicationLog() as log:
        run_spmd(every_operation, 3)
    found = {(e.operation, e.rank): e.bytes for e in log.entries}
    assert found == {
        (name, rank): nbytes
        for name, ranks in BYTES.items()
        for rank, nbytes in enumerate(ranks)
        if nbytes is not None
    }
    assert len(log.entries) == len(found)
    assert all(e.done_s is not None and e.done_s >= e.called_s >= 0 for e in log.entries)


def test_a_call_that_is_stuck_is_there_and_not_done():
    def program():
        rank, x = dist.get_rank(), torch.ones(2)
        dist.barrier()
        if rank == 1:
            dist.send(x, 3, tag=5)
        if rank == 3:
            dist.recv(x, tag=6)  # from any source

    with CommunicationLog() as log, pytest.raises(RankError, match="no rank can go on"):
        run_spmd(program, 4)
    stuck = {(e.rank, e.operation): e for e in log.entries if e.done_s is None}
    assert set(stuck) == {(1, "send"), (3, "recv")}
    assert stuck[1, "send"].peer == 3
    assert stuck[3, "recv"].peer is None


def test_an_entry_of_a_subgroup():
    def program():
        rank = dist.get_rank()
        dist.barrier()
        pair = dist.new_group([1, 3])
        if rank == 1:
            dist.send(torch.ones(2, 3, dtype=torch.bfloat16), 3, group=pair)
        if rank == 3:
            dist.recv(torch.ones(2, 3, dtype=torch.bfloat16), group=pair)
        if rank in (1, 3):
            dist.broadcast(torch.zeros((), dtype=torch.int64), src=3, group=pair)

    with CommunicationLog() as log:
        run_spmd(program, 4)
    barrier, sent, broadcast = (e for e in log.entries if e.rank == 1)
    (received,) = (e for e in log.entries if e.operation == "recv")
    assert (barrier.group, barrier.group_ranks) == ("the default group", (0, 1, 2, 3))
    assert (barrier.number, barrier.call, barrier.peer) == (1, 1, None)
    assert (barrier.shapes, barrier.dtypes) == ((), ())
    assert (sent.shapes, sent.dtypes, sent.bytes) == (((2, 3),), (torch.bfloat16,), 12)
    assert (sent.number, sent.call, sent.peer) == (0, 2, 3)
    assert (received.rank, received.peer) == (3, 1)
    assert re.fullmatch(r"group \S+ of ranks 1, 3", broadcast.group)
    assert (broadcast.group_ranks, broadcast.number, broadcast.call) == ((1, 3), 1, 3)
    assert (broadcast.shapes, broadcast.bytes) == (((),), 0)
    lines = program.__code__.co_firstlineno
    assert sent.line == f"{__file__}:{lines + 5}"


def test_a_collective_is_done_when_its_last_rank_has_called_it():
    def program():
        work = dist.all_reduce(torch.ones(2), async_op=True)
        dist.barrier()
        work.wait()

    with CommunicationLog() as log:
        run_spmd(program, 3)
    calls = [e for e in log.entries if e.operation == "all_reduce"]
    (done,) = {e.done_s for e in calls}
    assert done >= max(e.called_s for e in calls)
    first_barrier = next(e for e in log.entries if e.operation == "barrier")
    assert first_barrier.called_s < done  # rank 0 went on to it before


def test_within_a_rank_it_records_that_ranks_calls_and_logs_nest():
    def program():
        rank = dist.get_rank()
        dist.barrier()
        with CommunicationLog() as own:
            dist.all_reduce(torch.ones(rank + 1)[:1])
            with CommunicationLog() as inner:
                dist.broadcast(torch.ones(1), src=0)
        dist.barrier()
        return own.entries, inner.entries

    with CommunicationLog() as log:
        results = run_spmd(program, 3)
    for rank, (own, inner) in enumerate(results):
        assert [(e.rank, e.operation) for e in own] == [(rank, "all_reduce"), (rank, "broadcast")]
        assert [(e.rank, e.operation) for e in inner] == [(rank, "broadcast")]
    assert Counter(e.operation for e in log.entries) == {
        "barrier": 6, "all_reduce": 3, "broadcast": 3
    }  # fmt: skip


def test_what_is_done_after_the_log_is_not_done_in_it():
    def program():
        with CommunicationLog() as log:
            work = dist.all_reduce(torch.ones(1), async_op=True)
        work.wait()
        return log.entries

    first, last = run_spmd(program, 2)
    assert [e.done_s for e in first] == [None]
    assert [e.number for e in first] == [1]
    assert last[0].done_s is not None


def test_an_error_leaves_the_log_with_what_it_has_and_records_no_more():
    def program():
        dist.barrier()
        with CommunicationLog():
            if dist.get_rank() == 0:
                raise KeyError("lost")
            dist.all_reduce(torch.ones(2))  # rank 1 goes on first

    log = CommunicationLog()
    with pytest.raises(RankError, match="lost"), log:
        run_spmd(program, 2)
    assert not _log.active
    before = log.entries
    assert [(e.rank, e.operation, e.done_s is None) for e in before if e.rank == 1] == [
        (1, "barrier", False), (1, "all_reduce", True)
    ]  # fmt: skip
    run_spmd(dist.barrier, 2)
    assert log.entries == before
    with log:
        run_spmd(dist.barrier, 1)
    assert [e.operation for e in log.entries] == ["barrier"]  # it starts afresh


def test_it_keeps_no_tensors():
    kept = []

    def program():
        x = torch.ones(3)
        kept.append(weakref.ref(x))
        dist.all_reduce(x)
        del x
        gc.collect()
        dist.barrier()
        if dist.get_rank() == 0:
            kept.append(kept[0]() is None)
            dist.send(torch.ones(1), 1)  # nobody receives it

    log = CommunicationLog()
    with pytest.raises(RankError), log:
        run_spmd(program, 2)
    assert kept[-1] is True
    assert not log._open


def test_ddp_is_recorded_though_it_calls_from_cpp():
    def program():
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
        with CommunicationLog() as own:
            model(torch.ones(1, 4)).sum().backward()
        return own.entries

    (entry,), _ = run_spmd(program, 2)
    assert (entry.operation, entry.bytes) == ("all_reduce", 4 * (4 * 2 + 2))


def test_the_table_has_calls_and_bytes_a_rank_by_kind():
    def program():
        rank = dist.get_rank()
        for ranks in ([0, 1], [1, 3], [2, 4]):
            group = dist.new_group(ranks)
            if rank in ranks:
                dist.all_gather([torch.empty(500) for _ in range(2)], torch.ones(500), group)
        if rank == 4:
            dist.send(torch.ones(3), 0)
        if rank == 0:
            dist.recv(torch.empty(3), 4)

    with CommunicationLog() as log:
        assert str(log) == "no calls of communication"
        run_spmd(program, 5)
    assert str(log) == log.table()
    assert log.table().splitlines() == [
        "ranks   operation   calls  bytes",
        "0, 2-4  all_gather      1  2,000",
        "1       all_gather      2  4,000",
        "0       recv            1     12",
        "4       send            1     12",
    ]


def test_the_trace_has_a_row_a_rank_and_arrows_from_sends_to_receives(tmp_path):
    def program():
        rank = dist.get_rank()
        works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(2)]
        for work in works:
            work.wait()
        y = torch.empty(3)
        around = [
            dist.P2POp(dist.isend, torch.ones(3), (rank + 1) % 3),
            dist.P2POp(dist.irecv, y, (rank - 1) % 3),
        ]
        for work in dist.batch_isend_irecv(around):
            work.wait()
        if rank == 2:
            dist.isend(torch.ones(1), 0)  # nobody receives it

    with CommunicationLog() as log, pytest.raises(RankError, match="nobody met"):
        run_spmd(program, 3)
    path = tmp_path / "trace.json"
    log.to_chrome(path)
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {0: "rank 0", 1: "rank 1", 2: "rank 2"}

    slices = [e for e in events if e["ph"] == "X"]
    assert Counter((e["pid"], e["name"]) for e in slices) == {
        (0, "all_reduce"): 2, (1, "all_reduce"): 2, (2, "all_reduce"): 2,
        (0, "send"): 1, (1, "send"): 1, (2, "send"): 2,
        (0, "recv"): 1, (1, "recv"): 1, (2, "recv"): 1,
    }  # fmt: skip
    lines = {(e["pid"], e["tid"]) for e in slices}
    for line in lines:
        on_it = sorted((e["ts"], e["dur"]) for e in slices if (e["pid"], e["tid"]) == line)
        for (start, lasts), (following, _) in itertools.pairwise(on_it):
            assert start + lasts <= following + 1e-2  # rounded to ns
    assert len(lines) > 3  # rank 0's two overlap
    (lost,) = (e for e in slices if not e["args"]["done"])
    assert (lost["pid"], lost["name"], lost["args"]["peer"]) == (2, "send", 0)
    assert lost["ts"] + lost["dur"] >= max(e["ts"] + e["dur"] for e in slices) - 1e-2
    assert slices[0]["args"]["shapes"] == [[2]]
    assert slices[0]["args"]["dtypes"] == ["float32"]

    ends = {}
    for event in events:
        if event["name"] == "message":
            ends.setdefault(event["id"], {})[event["ph"]] = event
    assert {(e["s"]["pid"], e["f"]["pid"]) for e in ends.values()} == {(0, 1), (1, 2), (2, 0)}
    for both in ends.values():
        assert both["s"]["ts"] <= both["f"]["ts"]
        for phase, kind in (("s", "send"), ("f", "recv")):
            end = both[phase]
            assert any(
                e["name"] == kind
                and (e["pid"], e["tid"]) == (end["pid"], end["tid"])
                and e["ts"] <= end["ts"] <= e["ts"] + e["dur"]
                for e in slices
            )


def test_it_refuses_what_it_cannot_record():
    log = CommunicationLog()
    with log, pytest.raises(RuntimeError, match="records already"):
        log.__enter__()
    assert not _log.active
    with CommunicationLog(), pytest.raises(RuntimeError, match=r"virtual ranks only.*'gloo'"):
        run_spmd(dist.barrier, 2, backend="gloo")

    try:
        with pytest.raises(RuntimeError, match=r"virtual ranks only.*'gloo'"), CommunicationLog():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        with pytest.raises(RuntimeError, match=r"virtual ranks only.*'gloo'"):
            CommunicationLog().__enter__()
    finally:
        dist.destroy_process_group()
    assert not _log.active
