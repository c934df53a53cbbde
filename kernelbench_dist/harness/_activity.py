"""What calls do on the device, or in torch's operators, and how long each takes. For a worker.

Device activity comes from the trace that torch.profiler writes: only there are grid and block.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

_KINDS = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "fill"}
_WARM_UP = 3
_MOST_OPERATORS = 20


def of_calls(call: Callable[[], Any], device: torch.device, calls: int) -> dict[str, Any]:
    """Of so many calls: "device", launches that are alike, and "operators" with their CPU time.

    "device" is None on a CPU, and where the profiler recorded no device activity.
    """
    for _ in range(_WARM_UP):
        call()
    found: dict[str, Any] = {"calls": calls, "device": None}
    if device.type == "cuda":
        found["device"] = _device_activity(call, calls) or None
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(calls):
            call()
    averages = sorted(recorded.key_averages(), key=lambda event: -event.self_cpu_time_total)
    found["operators"] = [
        [event.key, event.count, event.self_cpu_time_total, event.cpu_time_total]
        for event in averages[:_MOST_OPERATORS]
    ]
    return found


def _device_activity(call: Callable[[], Any], calls: int) -> list[dict[str, Any]]:
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    # The only folder that a submission's process may write to.
    path = Path(os.environ["TMPDIR"]) / "trace.json"
    recorded.export_chrome_trace(str(path))
    text = path.read_text()
    path.unlink()
    return read_trace(text)


def read_trace(text: str) -> list[dict[str, Any]]:
    """The device's activity in a trace of torch.profiler: how many launches are alike, and us."""
    alike: dict[str, dict[str, Any]] = {}
    for event in json.loads(text)["traceEvents"]:
        kind = _KINDS.get(event.get("cat", ""))
        if kind is None:
            continue
        said = event.get("args", {})
        what = {
            "kind": kind,
            "name": event["name"],
            "grid": said.get("grid"),
            "block": said.get("block"),
            "registers_per_thread": said.get("registers per thread"),
            "shared_bytes": said.get("shared memory"),
            "bytes": said.get("bytes"),
        }
        one = alike.setdefault(json.dumps(what), {**what, "launches": 0, "us": 0.0})
        one["launches"] += 1
        one["us"] += event["dur"]
    return list(alike.values())


def replay(call: Callable[[], Any], device: torch.device) -> None:
    """One call, warmed up, between the marks that a profiler of this process waits for."""
    for _ in range(_WARM_UP):
        call()
    if device.type != "cuda":
        call()
        return
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
