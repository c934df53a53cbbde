"""The requests that both sides' workers answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch

from kernelbench_dist.harness import _launches, _measure, _model, _ranks
from kernelbench_dist.harness._channel import DTYPES
from kernelbench_dist.timing import _cpu, _cuda

Reply: TypeAlias = tuple[dict[str, Any], list[torch.Tensor]]
Request: TypeAlias = Callable[[dict[str, Any], list[torch.Tensor]], Reply]

_EMPTY_CALLS = 1000


class Served:
    """One rank of one side: a module, and the draws that it is given, by id.

    first: the message that a worker starts with.
    """

    module: torch.nn.Module

    def __init__(self, first: dict[str, Any]) -> None:
        self.device = torch.device(first["device"])
        self.dtype = DTYPES[first["dtype"]] if first["dtype"] else None
        self.backward: bool = first["backward"]
        self.rank: int = first["rank"]
        self.world_size: int = first["world_size"]
        self.draws: dict[int, _model.Inputs] = {}
        self.timed: _measure.Pool | None = None
        self.floor: _measure.Pool | None = None

    def requests(self) -> dict[str, Request]:
        """What answers each request, by its name."""
        return {
            "put": self.put,
            "drop": self.drop,
            "pool": self.pool,
            "refill": self.refill,
            "sample": self.sample,
            "results": self.results,
            "unpool": self.unpool,
            "memory": self.memory,
            "launches": self.launches,
        }

    def join(self, message: dict[str, Any]) -> None:
        """Take the device, and meet the other ranks."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        _ranks.join(self.rank, self.world_size, message.get("rendezvous"))

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
        calls: list[_measure.Call] = [partial(self._call, inputs) for inputs in self.pooled]
        self.timed = _measure.Pool(calls, self.device, message["min_time_us"])
        self.timed.prepare(message["method"])
        if message["floor"]:
            empty: _measure.Call = _cuda.empty if self.timed.on_gpu else _cpu.empty
            calls = [empty] * _EMPTY_CALLS
            self.floor = _measure.Pool(calls, self.device, message["min_time_us"])
            self.floor.prepare(self.timed.method)
        return {"method": self.timed.method, "reason": self.timed.reason}, []

    def refill(self, message: dict[str, Any], tensors: list[torch.Tensor]) -> Reply:
        """New values for all inputs of the pool, and their cotangents, in the pool's order."""
        values = iter(tensors)
        for inputs in self.pooled:
            for guard in inputs.guards:
                guard.refill(next(values))
            for cotangent in inputs.cotangents:
                cotangent.copy_(next(values))
        _model.synchronize(self.device)
        return {}, []

    def sample(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        pool = self.floor if message["of"] == "empty" else self.timed
        assert pool is not None
        us, calls = pool.sample(message["kind"])
        return {"us": us, "calls": calls}, []

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
        inputs = self.draws[message["id"]]
        if self.device.type != "cuda":
            return {"peak_above_inputs_bytes": None}, []
        for _round in range(2):  # the first call may allocate a library's workspace
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            self._call(inputs)
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - before
        return {"peak_above_inputs_bytes": peak}, []

    def launches(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        """What one call does, by the profiler."""
        inputs = self.draws[message["id"]]
        return _launches.of_call(partial(self._call, inputs), self.device), []

    def _call(self, inputs: _model.Inputs) -> Any:
        return _model.call(self.module, inputs, backward=self.backward)
