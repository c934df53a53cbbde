"""Device time and call time on a CUDA device.

Device time is taken by one of three methods, the same for all candidates of a run:

graph
    One CUDA graph holds many calls; its replay is timed between two events. No launch gap is in
    the figure.
events
    Two events around the calls, where some candidate cannot be captured. Where the device is
    faster than the host, gaps between launches are in the figure.
wall
    The host's clock around the calls and a device-wide synchronisation, where some candidate
    leaves work on a stream that the current one does not wait for. Events would miss that work.

A call may hide work from a graph or from events by giving it to another stream. So the host also
runs some calls and looks how long the whole device takes to finish once the last is queued: no
longer than the visible work of these calls, if that is all. What a call hides behind the host's own
work, or that adds less than a tenth, is not seen. This keeps honest mistakes out of the figures; it
is no defence against code that wants to deceive, which needs a process of its own.
"""

from __future__ import annotations

import functools
import gc
import warnings
from collections.abc import Sequence
from contextlib import suppress
from itertools import repeat
from time import perf_counter_ns
from typing import Any

import torch

from kernelbench_dist.timing._lane import Call, Lane, blame, calls_for, collector_off
from kernelbench_dist.timing._result import Method

_MOST_CALLS = 1000  # in one graph or one loop: a graph must stay small, a launch queue is finite
_MOST_COLD_CALLS = 10
_MIN_FLUSH_BYTES = 32 << 20  # where the L2's size is not reported, or small
# Work is hidden where the device, after so many calls, is busy for longer than the visible work of
# all of them, a tenth more, and what a host may be late by.
_STRAY_CALLS = 50  # at most, and three at least: a call may take long
_STRAY_CALLS_US = 20_000.0
_STRAY_SHARE = 0.1
_STRAY_US = 200.0


class CaptureError(Exception):
    """A function cannot be timed in a CUDA graph; the message says why."""


def empty() -> None:
    """The floor: one launch of a kernel that returns at once."""
    torch.cuda._sleep(0)


class CudaTimer:
    """Makes lanes for one device, which must be the current one as long as they are used."""

    def __init__(self, device: torch.device, min_time_us: float, *, warm: bool, cold: bool) -> None:
        self.device = device
        self.min_time_us = min_time_us
        self.warm = warm
        self.cold = cold
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        flush_bytes = max(2 * l2_bytes, _MIN_FLUSH_BYTES) if cold else 0
        self.flush = torch.empty(flush_bytes // 4, dtype=torch.int32, device=device)
        torch.cuda.synchronize()
        settle(device)
        # One pool for all graphs, so that what the candidates allocate lies at the same addresses:
        # where data lies can change a time by more than what is being looked for.
        self.pool = torch.cuda.graph_pool_handle()
        self.anchor: torch.cuda.CUDAGraph | None = None  # a pool lives as long as a graph in it

    def lanes(self, calls: Sequence[tuple[str, Call]]) -> tuple[list[Lane], Method, str | None]:
        """Lanes for every function, the method they share, and why it is not "graph"."""
        for name, call in calls:
            with blame(name, "in its first calls"):
                self._first_calls(call)
        lanes: list[Lane] = []
        method: Method = "wall"
        reason = None
        if self.warm or self.cold:
            method = "graph"
            # What the first calls left in cycles gives its memory back before the captures, and is
            # out of reach of a candidate that collects in one. Once: it takes a tenth of a second.
            gc.collect()
            for name, call in calls:
                try:
                    with blame(name, "while it was captured or replayed"):
                        lanes += self._graph_lanes(name, call)
                except RuntimeError as error:
                    if not isinstance(error.__cause__, CaptureError):
                        raise
                    reason = f"candidate {name!r}: {error.__cause__}"
                    break
        if reason is not None:
            # Ratios of figures taken in different ways mean nothing, so all candidates share the
            # method that suits the most difficult one. Graphs made so far are let go here.
            lanes.clear()
            stray = []
            for name, call in calls:
                with blame(name, "while it was looked at for work on other streams"):
                    if _leaves_work(call, _loop_events_us(call, 10) / 10):
                        stray.append(name)
            method = "wall" if stray else "events"
            if stray:
                reason += f"; work on streams that are not joined: {', '.join(map(repr, stray))}"
            for name, call in calls:
                with blame(name, "while its loop was sized"):
                    lanes += self._call_by_call_lanes(name, call, method)
        for name, call in calls:
            with blame(name, "while its loop was sized"):
                lanes.append(self._call_lane(name, call))
        return lanes, method, reason

    # How a function is made ready

    def _first_calls(self, call: Call) -> None:
        # Three, since some compiled functions warm up, record and replay; on the stream of the
        # coming capture, so that autograd and cuBLAS have their per-stream state beforehand.
        stream = _side_stream(self.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.synchronize()

    # Lanes

    def _graph_lanes(self, name: str, call: Call) -> list[Lane]:
        if self.anchor is None:
            self.anchor = _capture(empty, 1, self.device, self.pool)
        one = graph = _capture(call, 1, self.device, self.pool)
        calls, us = 1, _replay_us(one)
        # The first figure has the launch of the graph in it, so grow until the replay is seen to
        # be long enough. Each step at least doubles.
        while self.warm and calls < _MOST_CALLS and us < 0.7 * self.min_time_us:
            calls = max(
                min(2 * calls, _MOST_CALLS), calls_for(self.min_time_us, us / calls, _MOST_CALLS)
            )
            graph = _capture(call, calls, self.device, self.pool)
            us = _replay_us(graph)
        if _leaves_work(call, us / calls):
            raise CaptureError("it leaves work on a stream that the current one does not wait for")
        lanes = []
        if self.warm:
            lanes.append(Lane(name, "warm", calls, lambda: _replay_us(graph) / calls))
        if self.cold:
            lanes.append(self._cold_lane(name, one.replay, us / calls, "graph"))
        return lanes

    def _call_by_call_lanes(self, name: str, call: Call, method: Method) -> list[Lane]:
        estimate_us = _loop_us(call, 3) / 3
        calls = calls_for(self.min_time_us, estimate_us, _MOST_CALLS)
        loop = _loop_us if method == "wall" else _loop_events_us
        lanes = []
        if self.warm:
            lanes.append(Lane(name, "warm", calls, lambda: loop(call, calls) / calls))
        if self.cold:
            lanes.append(self._cold_lane(name, call, estimate_us, method))
        return lanes

    def _call_lane(self, name: str, call: Call) -> Lane:
        calls = calls_for(2 * self.min_time_us, _loop_us(call, 3) / 3, _MOST_CALLS)
        return Lane(name, "call", calls, lambda: _loop_us(call, calls) / calls)

    def _cold_lane(self, name: str, run: Call, estimate_us: float, method: Method) -> Lane:
        calls = calls_for(self.min_time_us, estimate_us, _MOST_COLD_CALLS)
        if method == "wall":
            return Lane(name, "cold", calls, lambda: self._cold_wall_us(run, calls))
        # Between the flush and the window a spin kernel keeps the device busy while the host
        # queues the window: much longer than that takes, or its hiccups are in the figure. At 2 GHz
        # or a little less.
        host_us = sorted(_host_us(run) for _ in range(5))[2]
        spin_cycles = round(2000 * min(100 + 3 * host_us, 3000))
        return Lane(name, "cold", calls, lambda: self._cold_us(run, calls, spin_cycles))

    def _cold_us(self, run: Call, calls: int, spin_cycles: int) -> float:
        windows = [(_event(), _event()) for _ in range(calls)]
        for start, end in windows:
            self.flush.fill_(1)
            torch.cuda._sleep(spin_cycles)
            start.record()
            run()
            end.record()
        torch.cuda.synchronize()
        return sum(1e3 * start.elapsed_time(end) for start, end in windows) / calls

    def _cold_wall_us(self, run: Call, calls: int) -> float:
        total_us = 0.0
        for _ in range(calls):
            self.flush.fill_(1)
            total_us += _loop_us(run, 1)  # it waits for the flush before it looks at the clock
        return total_us / calls


@functools.cache
def settle(device: torch.device) -> torch.cuda.CUDAGraph:
    """Brings the process to the state in which programs spend their lives.

    Once a process has made a thousand launches, each node of a graph of a thousand costs 0.70 us on
    an H200, not 0.53, for as long as it lives. So all figures are taken after both. What is kept is
    that graph.
    """
    with torch.cuda.device(device):
        for _ in repeat(None, 2 * _MOST_CALLS):
            empty()
        graph = _capture(empty, _MOST_CALLS, device, torch.cuda.graph_pool_handle())
        graph.replay()
        torch.cuda.synchronize()
    return graph


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def _leaves_work(call: Call, visible_us: float) -> bool:
    """Whether the device is at work for longer than calls that take visible_us each explain."""
    calls = max(3, calls_for(_STRAY_CALLS_US, visible_us, _STRAY_CALLS))

    def busy_us() -> float:
        torch.cuda.synchronize()
        for _ in repeat(None, calls):
            call()
        start = perf_counter_ns()
        torch.cuda.synchronize()
        return (perf_counter_ns() - start) / 1e3

    # Three times, so that one disturbance of the host does not decide.
    most_us = (1 + _STRAY_SHARE) * calls * visible_us + _STRAY_US
    return min(busy_us() for _ in range(3)) > most_us


def _host_us(run: Call) -> float:
    """How long the host takes to queue one call on an idle device."""
    torch.cuda.synchronize()
    start = perf_counter_ns()
    run()
    us = (perf_counter_ns() - start) / 1e3
    torch.cuda.synchronize()
    return us


def _loop_us(call: Call, calls: int) -> float:
    """Wall time of a loop of calls, up to the end of all their work on any stream."""
    torch.cuda.synchronize()
    start = perf_counter_ns()
    for _ in repeat(None, calls):
        call()
    torch.cuda.synchronize()
    return (perf_counter_ns() - start) / 1e3


def _loop_events_us(call: Call, calls: int) -> float:
    """Time between an event before and an event after a loop of calls."""
    start, end = _event(), _event()
    call()  # the L2 is then as this function leaves it
    start.record()
    for _ in repeat(None, calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * start.elapsed_time(end)


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    """Time of one replay, between events.

    The untimed replay before it leaves the L2 as this function leaves it, whatever ran before;
    and it keeps the device busy while the host launches the timed one, whose launch would
    otherwise lie between the events.
    """
    start, end = _event(), _event()
    graph.replay()
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * start.elapsed_time(end)


# Capture

_EMPTY_GRAPH = "CUDA Graph is empty"  # in torch's warning
_side_streams: dict[int, torch.cuda.Stream] = {}
_failed_graphs: list[torch.cuda.CUDAGraph] = []


def _side_stream(device: torch.device) -> torch.cuda.Stream:
    # One for the life of the process: cuBLAS keeps a workspace for every stream it has seen.
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in _side_streams:
        _side_streams[index] = torch.cuda.Stream(device)
    return _side_streams[index]


@collector_off()
def _capture(
    call: Call,
    calls: int,
    device: torch.device,
    pool: Any,  # what torch.cuda.graph_pool_handle gives; torch has no public name for its type
) -> torch.cuda.CUDAGraph:
    """A graph of `calls` calls.

    What a call allocates comes from the pool and is free for the next call as soon as it is
    dropped, so the graph needs the memory of one call.

    The garbage collector is off meanwhile: to destroy an event or a graph that it finds is a call
    of CUDA which may invalidate the capture.

    Raises CaptureError, with the process as fit for CUDA work as before.
    """
    stream = _side_stream(device)
    # With "thread_local" other threads of the process may go on using CUDA.
    graph = torch.cuda.CUDAGraph()
    failure: BaseException | None = None
    ended = False
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught, torch.cuda.stream(stream):
        warnings.simplefilter("always")
        try:
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            for _ in repeat(None, calls):
                call()
        except BaseException as error:
            failure = error
        torch.cuda.set_stream(stream)  # a call that raised may have left another one current
        try:
            graph.capture_end()
            ended = True
        except RuntimeError as error:
            failure = failure or error  # the first error is the cause
    reason = ""
    own = [w for w in caught if _EMPTY_GRAPH not in str(w.message)]
    if failure is None and len(own) < len(caught):
        reason = "it starts no work on the current stream"
    interrupt = None if isinstance(failure, Exception) else failure
    if failure is not None:
        first_line = next(iter(str(failure).splitlines()), "")
        reason = f"capture failed: {type(failure).__name__}: {first_line}"
    # The traceback holds the frames of the call, the tensors in them, and this frame.
    failure = None
    if reason:
        if not ended:
            _abandon(graph, pool, device)
        graph.reset()
        torch.cuda.synchronize()
    if interrupt is not None:
        raise interrupt
    # The candidate's own warnings go where they would have gone, now that a filter that makes
    # exceptions of them does no harm. They share a registry: one of many calls is shown once.
    registry: dict[str | tuple[str, type[Warning], int], int] = {}
    for w in own:
        warnings.warn_explicit(
            w.message, w.category, w.filename, w.lineno, registry=registry, source=w.source
        )
    if reason:
        raise CaptureError(reason)
    return graph


def _abandon(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> None:
    """Clean up after a capture that could not be ended.

    CUDA has then left capture mode, but before 2.14 torch has not: its allocator still counts a
    capture as under way, which puts off the release of memory, and some versions' random
    generator refuses to draw. `reset` does not undo that, so it is done here.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    _side_streams.pop(index, None)  # the next capture gets a fresh stream
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14):
        # One block: the first call raises where the pool was never entered, or was left already,
        # and then the second must not run. To enter a pool is to hold it once more, and only that
        # hold is to be given back: the others are those of finished graphs, whose memory one
        # release too many would give away. (What fails late in capture_end, `reset` releases.)
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(index, pool)
            torch._C._cuda_releasePool(index, pool)
        # The pinned-memory allocator keeps a pointer to the graph, and has no such function.
        _failed_graphs.append(graph)
    graph.reset()
    # A capture that succeeds takes the generator out of capture mode, and shows that captures
    # work again.
    healed = torch.cuda.CUDAGraph()
    stream = _side_stream(device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        empty()
        torch.cuda.synchronize()
        healed.capture_begin(capture_error_mode="thread_local")
        empty()
        healed.capture_end()
    healed.reset()
