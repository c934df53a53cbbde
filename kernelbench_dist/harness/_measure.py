"""The time of a module's calls, in a worker.

A pool holds the inputs of some calls at fixed places. Before every sample the judge fills it with
inputs never seen before, and in a sample each call gets its own: to remember an answer, or to do
the work once for many calls, helps nobody. The outputs of the last sample stay for the judge to
look at.

graph
    One CUDA graph holds a call on each of the pool's inputs; a sample is so many replays between
    two events. A replay repeats all the work that was captured.
events, wall
    Where a module cannot be captured: its calls, one on each input, between two events; or by the
    clock and a device-wide synchronisation, where it leaves work on a stream that is not joined.

What the figures rest on is bound here, before a submission is loaded, to functions of compiled
code. One that finds and replaces them still has to face the judge's own clock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any, Literal

import torch

from kernelbench_dist.timing import _cuda
from kernelbench_dist.timing._lane import collector_off

Call = Callable[[], Any]
Method = Literal["graph", "events", "wall"]

_COLD_CALLS = 5
_MOST_REPLAYS = 1000


def _no_cuda(*_: object) -> None:
    raise RuntimeError("this torch has no CUDA")


# Kept as they are now. (To ask for GPUs here would spoil CUDA for the forks of this process.)
_BUILT = torch.backends.cuda.is_built()
_clock = perf_counter_ns
_synchronize: Callable[[], None] = torch._C._cuda_synchronize if _BUILT else _no_cuda
_Event = torch._C._CudaEventBase
_replay: Callable[[Any], None] = torch._C._CUDAGraph.replay if _BUILT else _no_cuda
_sleep: Callable[[int], None] = torch._C._cuda_sleep if _BUILT else _no_cuda


class Pool:
    """Calls on the inputs of a pool, ready to be timed."""

    def __init__(self, calls: list[Call], device: torch.device, min_time_us: float) -> None:
        self.calls = calls
        self.device = device
        self.min_time_us = min_time_us
        self.on_gpu = device.type == "cuda"
        self.results: list[Any] = [None] * len(calls)
        self.method: Method = "wall"
        self.reason: str | None = None
        self.replays = 1
        self.graph: torch.cuda.CUDAGraph | None = None
        self.cold_graphs: list[torch.cuda.CUDAGraph] = []

    def prepare(self, wanted: Method) -> None:
        for _ in range(3):
            self._all_calls()
        if not self.on_gpu:
            return
        self.method = wanted
        _cuda.settle(self.device)
        l2_bytes = torch.cuda.get_device_properties(self.device).L2_cache_size
        self.flush = torch.empty(
            max(2 * l2_bytes, _cuda._MIN_FLUSH_BYTES) // 4, dtype=torch.int32, device=self.device
        )
        if wanted == "graph":
            try:
                self._capture()
                return
            except _cuda.CaptureError as error:
                self.reason = str(error)
                self.graph, self.cold_graphs = None, []
        if wanted != "wall":
            each_us = self._between_events(self._all_calls) / len(self.calls)
            stray = any(_cuda._leaves_work(call, each_us) for call in self.calls[:1])
            self.method = "wall" if stray else "events"
            if stray:
                said = "work on a stream that the current one does not wait for"
                self.reason = f"{self.reason}; {said}" if self.reason else said

    def sample(self, kind: str) -> tuple[float, int]:
        """Microseconds a call, and how many calls they are a mean of."""
        with collector_off():
            if kind == "call":
                return self._wall(self._all_calls) / len(self.calls), len(self.calls)
            return self._warm() if kind == "warm" else self._cold()

    def _all_calls(self) -> None:
        results, calls = self.results, self.calls
        for i in range(len(calls)):
            results[i] = calls[i]()

    def _capture(self) -> None:
        stream = _cuda._side_stream(self.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._all_calls()
        torch.cuda.synchronize()
        memory = torch.cuda.graph_pool_handle()
        # Cold ones first: those captured last own the results that are looked at.
        for i in range(min(_COLD_CALLS, len(self.calls))):
            self.cold_graphs.append(_cuda._capture(self.calls[i], 1, self.device, memory))
        self.graph = _cuda._capture(self._all_calls, 1, self.device, memory)
        us = self._between_events(partial(_replay, self.graph))
        self.replays = max(1, min(_MOST_REPLAYS, round(self.min_time_us / max(us, 1e-3))))
        if _cuda._leaves_work(self.calls[0], us / len(self.calls)):
            raise _cuda.CaptureError(
                "it leaves work on a stream that the current one does not wait for"
            )

    def _warm(self) -> tuple[float, int]:
        count = len(self.calls)
        if self.graph is not None:
            again = partial(_replay, self.graph)
            again()  # it keeps the device busy while the timed ones are queued

            def run() -> None:
                for _ in range(self.replays):
                    again()

            return self._between_events(run) / (count * self.replays), count * self.replays
        if self.method == "events":
            return self._between_events(self._all_calls) / count, count
        return self._wall(self._all_calls) / count, count

    def _cold(self) -> tuple[float, int]:
        runs: list[Call] = (
            [partial(_replay, graph) for graph in self.cold_graphs]
            if self.graph is not None
            else list(self.calls[:_COLD_CALLS])
        )
        total = 0.0
        for run in runs:
            self.flush.fill_(1)
            if self.method == "wall":
                total += self._wall(run)
            else:
                # The device spins, about 100 us, until the host has queued the window.
                _sleep(200_000)
                total += self._between_events(run)
        return total / len(runs), len(runs)

    def _between_events(self, run: Call) -> float:
        stream = torch.cuda.current_stream(self.device)
        start, end = _Event(enable_timing=True), _Event(enable_timing=True)
        start.record(stream)
        run()
        end.record(stream)
        _synchronize()
        return 1e3 * start.elapsed_time(end)

    def _wall(self, run: Call) -> float:
        if self.on_gpu:
            _synchronize()
        begin = _clock()
        run()
        if self.on_gpu:
            _synchronize()
        return (_clock() - begin) / 1e3
