"""`bench`: time functions side by side."""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from kernelbench_dist.timing import _cpu, _cuda
from kernelbench_dist.timing._lane import Call, Lane, blame, collector_off
from kernelbench_dist.timing._result import (
    KINDS,
    BenchResult,
    Environment,
    Kind,
    Method,
    Samples,
    assemble,
)
from kernelbench_dist.timing._stats import MIN_ROUNDS

_WARM_UP_S = 0.2  # long enough for a GPU's clocks to rise


def bench(
    candidates: Mapping[str, Callable[..., object]],
    *inputs: object,
    device: torch.device | str | None = None,
    rounds: int = 50,
    min_time_ms: float = 1.0,
    cold: bool = True,
    warm: bool = True,
    seed: int = 0,
    baseline: str | None = None,
    progress: bool | None = None,
) -> BenchResult:
    """Time each `candidates[name](*inputs)`, interleaved, and compare it with the baseline.

    In every round each candidate is timed once in each of its ways; the order of the candidates is
    random, and reversed in the next round. Beside them, in the same rounds and the same ways, an
    empty kernel (on a CPU, an empty Python function) gives the floor.

    On a GPU there are two times. *Device time* is that of the kernels, from a CUDA graph of many
    calls where all candidates can be captured, else by the method that the result names. With a
    *warm* L2 calls follow each other; with a *cold* one, a buffer of twice the L2 is written
    before each call (whose dirty lines the call then has to evict); what a candidate has set to
    persist in the L2 stays there. By events, a call that takes the host about a millisecond or
    more may have launch gaps in its cold time. *Call time* is the wall clock of a Python loop,
    synchronised once at its end, over the number of calls. On a CPU there is call time only.

    A candidate runs in the caller's grad mode, and many times on the same inputs, so it should
    not change them. One that needs backward does it itself, in a closure. The garbage collector
    is off while a sample is taken, and torch's random states are restored in the end.

    Args:
        candidates: names and functions.
        inputs: passed on to every function. Tensors are looked for in lists, tuples and dicts too.
        device: "cpu" or a CUDA device. Default: that of the tensors in `inputs`; without any, the
            current CUDA device if there is one, else the CPU.
        rounds: samples of each function and kind, 8 or more.
        min_time_ms: milliseconds that one sample should last; calls are repeated to fill it
            (1000 at most on a GPU).
        cold, warm: whether to measure device time with a cold and with a warm L2.
        seed: of the order of the candidates and of the bootstrap, 0 or more.
        baseline: the candidate that the others are compared with. Default: the first.
        progress: show a progress bar on stderr. Default: where stderr is a terminal.

    Returns:
        A BenchResult. Times are in microseconds; `print` shows a table, `to_json` keeps all.

    Raises:
        TypeError: candidates that are not a mapping from strings to callables.
        ValueError: no candidates, an unknown baseline or device, tensors on several devices,
            too few rounds, a time that is not positive, a seed that is no int of 0 or more.
        RuntimeError: a candidate raised, with its exception as the cause; no CUDA device; a CUDA
            graph capture is under way.

    >>> import torch
    >>> x = torch.ones(16)
    >>> add = {"one": lambda x: x + 1, "many": lambda x: sum(x + 1 for _ in range(50))}
    >>> result = bench(add, x, rounds=10, min_time_ms=0.1)
    >>> result.ratio("many").verdict
    'slower'
    >>> result["one"].call.median_us > 0, result["one"].warm
    (True, None)
    """
    names = _check_candidates(candidates)
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < MIN_ROUNDS:
        raise ValueError(f"rounds is {rounds!r}; an int of {MIN_ROUNDS} or more is accepted")
    if not (math.isfinite(min_time_ms) and min_time_ms > 0):
        raise ValueError(f"min_time_ms is {min_time_ms!r}; a positive number is accepted")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed is {seed!r}; an int of 0 or more is accepted")
    baseline = names[0] if baseline is None else baseline
    if baseline not in names:
        raise ValueError(f"baseline is {baseline!r}; one of the candidates {names} is accepted")
    where = _check_device(device, inputs)
    on_gpu = where.type == "cuda"

    started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    calls: list[tuple[str, Call]] = [(name, partial(candidates[name], *inputs)) for name in names]
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[where] if on_gpu else []))
        if on_gpu:
            stack.enter_context(torch.cuda.device(where))
            empty_name = "(empty kernel)"
            timer = _cuda.CudaTimer(where, 1e3 * min_time_ms, warm=warm, cold=cold)
            lanes, method, reason = timer.lanes([*calls, (empty_name, _cuda.empty)])
        else:
            empty_name = "(empty function)"
            calls.append((empty_name, partial(_cpu.empty, *inputs)))
            lanes, method, reason = _cpu.lanes(calls, 1e3 * min_time_ms), "wall", None
        samples = _run(lanes, rounds, np.random.default_rng(seed), progress)
        environment = _environment(where, started_at)
        del lanes  # with it the graphs and their memory
    return _result(samples, names, empty_name, environment, method, reason, rounds, seed, baseline)


def _run(
    lanes: list[Lane], rounds: int, rng: np.random.Generator, progress: bool | None
) -> list[tuple[Lane, list[float]]]:
    """`rounds` samples of every lane; lanes of one kind follow each other closely."""
    samples: list[list[float]] = [[] for _ in lanes]
    by_kind = [[i for i, lane in enumerate(lanes) if lane.kind == kind] for kind in KINDS]
    start = perf_counter()
    while True:
        for lane in lanes:
            _sample(lane)
        if perf_counter() - start > _WARM_UP_S:
            break
    order: list[list[int]] = []
    for i in _track(rounds, progress):
        # A random order and then its reverse (A B B A): what drifts steadily through two rounds
        # adds to one candidate's ratio as much as it takes away.
        if i % 2 == 0:
            order = [[int(k) for k in rng.permutation(kind)] for kind in by_kind]
        else:
            order = [kind[::-1] for kind in order]
        for kind in order:
            for k in kind:
                samples[k].append(_sample(lanes[k]))
    return list(zip(lanes, samples, strict=True))


def _sample(lane: Lane) -> float:
    with collector_off(), blame(lane.name, "while it was timed"):
        return lane.sample()


def _result(
    samples: list[tuple[Lane, list[float]]],
    names: list[str],
    empty_name: str,
    environment: Environment,
    method: Method,
    reason: str | None,
    rounds: int,
    seed: int,
    baseline: str,
) -> BenchResult:
    # A candidate may have the floor's name, so lanes are told apart by their place as well: in
    # every kind the candidates come in order and the floor comes last.
    def measured(index: int) -> dict[Kind, Samples]:
        found: dict[Kind, Samples] = {}
        for kind in KINDS:
            of_kind = [(lane.calls, us) for lane, us in samples if lane.kind == kind]
            if of_kind:
                found[kind] = of_kind[index]
        return found

    return assemble(
        [(name, measured(i)) for i, name in enumerate(names)],
        (empty_name, measured(-1)),
        environment=environment,
        method=method,
        reason=reason,
        rounds=rounds,
        seed=seed,
        baseline=baseline,
    )


def _check_candidates(candidates: Mapping[str, Callable[..., object]]) -> list[str]:
    if not isinstance(candidates, Mapping):
        raise TypeError(
            f"candidates is a {type(candidates).__name__}; a mapping from names to callables is "
            'accepted, as in bench({"a": f, "b": g}, x)'
        )
    if not candidates:
        raise ValueError("candidates is empty; one or more named callables are accepted")
    for name, fn in candidates.items():
        if not isinstance(name, str):
            raise TypeError(f"a candidate's name is {name!r}; a str is accepted")
        if not callable(fn):
            raise TypeError(f"candidate {name!r} is {fn!r}; a callable is accepted")
    return list(candidates)


def _check_device(device: torch.device | str | None, inputs: tuple[object, ...]) -> torch.device:
    if device is None:
        found = sorted({str(t.device) for t in _tensors(inputs)})
        if len(found) > 1:
            raise ValueError(
                f"inputs are on several devices, {', '.join(found)}; name the one to time with "
                "device="
            )
        device = found[0] if found else "cuda" if torch.cuda.is_available() else "cpu"
    try:
        where = torch.device(device)
    except RuntimeError:  # torch's way of saying that it knows no such device
        raise ValueError(f"device is {device!r}; 'cpu' and CUDA devices are accepted") from None
    if where.type == "cpu":
        return where
    if where.type != "cuda":
        raise ValueError(f"device is {str(where)!r}; 'cpu' and CUDA devices are accepted")
    if not torch.cuda.is_available():
        raise RuntimeError(f"device is {str(where)!r}, but torch sees no CUDA device")
    if where.index is not None and where.index >= torch.cuda.device_count():
        raise ValueError(
            f"device is {str(where)!r}; cuda:0 to cuda:{torch.cuda.device_count() - 1} are accepted"
        )
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("bench cannot run inside a CUDA graph capture")
    return torch.device("cuda", torch.cuda.current_device() if where.index is None else where.index)


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _track(rounds: int, progress: bool | None) -> Iterable[int]:
    if progress is None:
        progress = sys.stderr.isatty()
    return _bar(rounds) if progress else range(rounds)


def _bar(rounds: int) -> Iterator[int]:
    from rich.console import Console
    from rich.progress import Progress

    # auto_refresh would draw from a thread of its own, in the middle of a sample.
    with Progress(console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task("timing", total=rounds)
        for i in range(rounds):
            yield i
            bar.update(task, advance=1, refresh=True)


def _environment(device: torch.device, started_at: str) -> Environment:
    on_gpu = device.type == "cuda"
    properties = torch.cuda.get_device_properties(device) if on_gpu else None
    return Environment(
        started_at=started_at,
        device=str(device),
        device_name=properties.name if properties else _cpu_name(),
        driver=_driver_version() if on_gpu else None,
        cuda=torch.version.cuda,
        torch=str(torch.__version__),
        python=platform.python_version(),
        threads=torch.get_num_threads(),
        clock_mhz=_clock_mhz(device) if on_gpu else None,
        l2_bytes=properties.L2_cache_size if properties else None,
    )


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _driver_version() -> str | None:
    # The kernel module's own file, so that no NVML binding is needed.
    with suppress(OSError):
        return Path("/sys/module/nvidia/version").read_text().strip()
    return None


def _clock_mhz(device: torch.device) -> int | None:
    # Needs the NVML binding, which is optional, and the driver's permission; what it raises
    # depends on which of them is missing.
    with suppress(Exception):
        return int(torch.cuda.clock_rate(device))
    return None
