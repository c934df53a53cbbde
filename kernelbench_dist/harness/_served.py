"""The requests that both sides' workers answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch

from kernelbench_dist.harness import _activity, _launches, _measure, _memory, _model
from kernelbench_dist.harness._channel import DTYPES
from kernelbench_dist.harness._ranks import OwnProcess, Reply
from kernelbench_dist.timing import _cpu, _cuda

Request: TypeAlias = Callable[[dict[str, Any], list[torch.Tensor]], Reply]

_EMPTY_CALLS = 1000


class Served:
    """One rank of one side: a module, and the draws that it is given, by id.

    first: the message that a worker starts with. ranks: this rank among the others.
    """

    module: torch.nn.Module

    def __init__(self, first: dict[str, Any], ranks: OwnProcess) -> None:
        self.device = torch.device(first["device"])
        self.dtype = DTYPES[first["dtype"]] if first["dtype"] else None
        self.backward: bool = first["backward"]
        self.ranks = ranks
        self.rank = ranks.rank
        self.world_size = ranks.world_size
        self.draws: dict[int, _model.Inputs] = {}
        self.timed: _measure.Pool | None = None
        self.floor: _measure.Pool | None = None
        self.handed: list[torch.Tensor] = []

    def requests(self) -> dict[str, Request]:
        """What answers each request, by its name."""
        return {
            "put": self.put,
            "drop": self.drop,
            "pool": self.pool,
            "hand": self.hand,
            "refill": self.refill,
            "sample": self.sample,
            "results": self.results,
            "unpool": self.unpool,
            "memory": self.memory,
            "launches": self.launches,
            "activity": self.activity,
            "replay": self.replay,
        }

    def join(self, message: dict[str, Any]) -> None:
        """Take the device, and meet the other ranks."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.ranks.join(message.get("rendezvous"))

    def put(self, message: dict[str, Any], tensors: list[torch.Tensor]) -> Reply:
        """Keep inputs that come from the judge, under an id."""
        count = message["count"]
        self.draws[message["id"]] = _model.place(
            message["inputs"],
            tensors[:count],
            self.device,
            layout=message["layout"],
            cotangents=tensors[count:],
        )
        return {}, []

    def drop(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        self.draws.pop(message["id"], None)
        return {}, []

    def pool(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        """Make the draws with the given ids a pool."""
        self.pooled = [self.draws[i] for i in message["ids"]]
        own: list[_measure.Call] = [partial(self._call, inputs) for inputs in self.pooled]
        calls, least_us = self.ranks.together(own), message["min_time_us"]
        timed = self.timed = _measure.Pool(calls, self.device, least_us)

        def prepare() -> dict[str, Any]:
            timed.prepare(message["method"])
            if message["floor"]:
                empty: _measure.Call = _cuda.empty if timed.on_gpu else _cpu.empty
                self.floor = _measure.Pool([empty] * _EMPTY_CALLS, self.device, least_us)
                self.floor.prepare(timed.method)
            return {"method": timed.method, "reason": timed.reason}

        return self.ranks.conduct(calls, prepare, timed.results), []

    def hand(self, _: dict[str, Any], tensors: list[torch.Tensor]) -> Reply:
        """Keep new values for all inputs of the pool, and their cotangents, in the pool's order."""
        self.handed = tensors
        return {}, []

    def refill(self, _: dict[str, Any], __: list[torch.Tensor]) -> Reply:
        """Put them at their places."""
        values = iter(self.handed)
        for inputs in self.pooled:
            for guard in inputs.guards:
                guard.refill(next(values))
            for cotangent in inputs.cotangents:
                _memory.overwrite(cotangent, next(values))
        self.handed = []
        _model.synchronize(self.device)
        return {}, []

    def sample(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        timed = self.timed
        assert timed is not None

        def sample() -> dict[str, Any]:
            pool = self.floor if message["of"] == "empty" else timed
            assert pool is not None
            us, calls = pool.sample(message["kind"])
            return {"us": us, "calls": calls}

        return self.ranks.conduct(timed.calls, sample, timed.results), []

    def results(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        """The outputs of one call of the last sample."""
        assert self.timed is not None
        leaves = self.timed.results[message["index"]]
        plain = [leaf for leaf in leaves if type(leaf) in (torch.Tensor, torch.nn.Parameter)]
        held = sum(t.numel() * t.element_size() for t in plain)
        return {}, plain if held <= message["most_bytes"] else []

    def unpool(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        self.pooled = []
        self.timed = self.floor = None
        return {}, []

    def memory(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        """The allocator's peak in one call, above what was allocated before it."""
        if self.device.type != "cuda":
            return {"peak_above_inputs_bytes": None}, []
        calls = self.ranks.together([partial(self._call, self.draws[message["id"]])])

        def peak() -> int:
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            calls[0]()
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated() - before

        # The first call may allocate a library's workspace.
        found = self.ranks.conduct(calls, lambda: [peak() for _round in range(2)])
        return {"peak_above_inputs_bytes": found[-1]}, []

    def launches(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        """What one call does, by the profiler."""
        calls = self.ranks.together([partial(self._call, self.draws[message["id"]])])
        return self.ranks.conduct(calls, lambda: _launches.of_call(calls[0], self.device)), []

    def activity(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        """Where the time of some calls goes, by the profiler."""
        calls = self.ranks.together([partial(self._call, self.draws[message["id"]])])
        found = self.ranks.conduct(
            calls, lambda: _activity.of_calls(calls[0], self.device, message["calls"])
        )
        return found, []

    def replay(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        """One call for a profiler that runs this process, which sees no other."""
        calls = self.ranks.together([partial(self._call, self.draws[message["id"]])])
        self.ranks.conduct(calls, lambda: _activity.replay(calls[0], self.device))
        return {}, []

    def _call(self, inputs: _model.Inputs) -> Any:
        return _model.call(self.module, inputs, backward=self.backward)
