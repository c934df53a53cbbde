"""What a small all_reduce costs on virtual ranks, beside the other ways to have ranks.

    python benchmarks/spmd.py [--ranks 4 8 64] [--gloo-most 8] [--json FILE]

Each way runs the same calls: `all_reduce` of 1024 floats over the whole world. A figure is the wall
time of one of them for all ranks together, in microseconds, the median of some rounds; beside it
its ratio to the stacked `x.sum(0)` of the same (R, 1024) floats. The ways take turns, so that what
else the machine does falls on all of them. Of real processes this is no measure: virtual ranks run
one at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

COUNT = 1024
Timer = Callable[[int, int, torch.device], float]


def _calls(calls: int, device: torch.device) -> float:
    """Seconds that a rank needs for so many calls."""
    x = torch.ones(COUNT, device=device)
    for _ in range(3):
        dist.all_reduce(x)
    x.zero_()
    _finish(device)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(x)
    dist.barrier()
    _finish(device)
    return time.perf_counter() - start


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def virtual(ranks: int, calls: int, device: torch.device) -> float:
    from kernelbench_dist.distributed_collectives import run_spmd

    return max(run_spmd(_calls, ranks, (calls, device), device=device)) / calls


def threaded(ranks: int, calls: int, device: torch.device) -> float:
    """The threads that torch tests its own code with."""
    from torch.testing._internal.distributed import multi_threaded_pg as torchs

    isolate = torch._C._distributed_c10d._set_thread_isolation_mode  # type: ignore[attr-defined]
    store, took = dist.HashStore(), [0.0] * ranks

    def program(rank: int) -> None:
        dist.init_process_group("threaded", rank=rank, world_size=ranks, store=store)
        took[rank] = _calls(calls, device)
        with contextlib.suppress(AttributeError):  # torch 2.11's world of threads lacks `comms`.
            dist.destroy_process_group()

    torchs._install_threaded_pg()
    isolate(True)
    try:
        threads = [threading.Thread(target=program, args=(rank,)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        isolate(False)
        torchs._uninstall_threaded_pg()
    return max(took) / calls


def local_tensor(ranks: int, calls: int, device: torch.device) -> float:
    """torch's LocalTensor, which runs each operation for all ranks."""
    import torch.testing._internal.distributed.fake_pg
    from torch.distributed._local_tensor import LocalTensor, LocalTensorMode

    dist.init_process_group("fake", rank=0, world_size=ranks, store=dist.HashStore())
    try:
        with LocalTensorMode(ranks):
            x = LocalTensor({rank: torch.ones(COUNT, device=device) for rank in range(ranks)})
            dist.all_reduce(x)
            assert all(float(t[0]) == ranks for t in x._local_tensors.values())
            _finish(device)
            start = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(x)
            _finish(device)
            return (time.perf_counter() - start) / calls
    finally:
        dist.destroy_process_group()


def gloo(ranks: int, calls: int, device: torch.device) -> float:
    """A process a rank."""
    from kernelbench_dist.distributed_collectives import run_spmd

    return max(run_spmd(_calls, ranks, (calls, device), backend="gloo")) / calls


def stacked(ranks: int, calls: int, device: torch.device) -> float:
    x = torch.ones(ranks, COUNT, device=device)
    x.sum(0)
    _finish(device)
    start = time.perf_counter()
    for _ in range(calls):
        x.sum(0)
    _finish(device)
    return (time.perf_counter() - start) / calls


WAYS: dict[str, tuple[Timer, int]] = {  # and the calls of one round
    "stacked x.sum(0)": (stacked, 2000),
    "virtual ranks": (virtual, 100),
    "torch's threaded group": (threaded, 100),
    "LocalTensor": (local_tensor, 10),
    "gloo processes": (gloo, 100),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8, 64])
    parser.add_argument("--gloo-most", type=int, default=8, help="the most gloo processes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="where all samples are kept")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    samples: dict[int, dict[str, list[float]]] = {}
    for ranks in options.ranks:
        of_ranks = samples.setdefault(ranks, {})
        for _ in range(options.rounds):
            for name, (timer, calls) in WAYS.items():
                if name == "gloo processes" and (ranks > options.gloo_most or device.type != "cpu"):
                    continue
                try:
                    took = timer(ranks, calls, device)
                except Exception as error:
                    print(
                        f"{name}, {ranks} ranks: {type(error).__name__}: {error}", file=sys.stderr
                    )
                    continue
                of_ranks.setdefault(name, []).append(1e6 * took)
    print(_table(samples))
    if options.json:
        about = {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "machine": platform.machine(),
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d"),
            "microseconds": samples,
        }
        options.json.write_text(json.dumps(about, indent=1) + "\n")


def _table(samples: dict[int, dict[str, list[float]]]) -> str:
    lines = [
        "| all_reduce of 1024 floats, us (x stacked) | "
        + " | ".join(f"R = {ranks}" for ranks in samples)
        + " |"
    ]
    lines.append("| --- |" + " --- |" * len(samples))
    for name in WAYS:
        cells = []
        for of_ranks in samples.values():
            if name not in of_ranks:
                cells.append("-")
                continue
            us = statistics.median(of_ranks[name])
            unit = statistics.median(of_ranks["stacked x.sum(0)"])
            cells.append(f"{us:.0f} ({us / unit:.0f})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
