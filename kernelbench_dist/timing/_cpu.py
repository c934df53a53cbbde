"""Wall-clock time on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from time import perf_counter_ns

import torch

from kernelbench_dist.timing._lane import Call, Lane, blame, calls_for

_MOST_CALLS = 1_000_000


def empty(*args: object) -> None:
    """The floor: called as a candidate is, it costs the loop, the call and the clock."""


def lanes(calls: Sequence[tuple[str, Call]], min_time_us: float) -> list[Lane]:
    """One lane a function: wall time of a loop of calls, over their number."""
    result = []
    for name, call in calls:
        with blame(name, "in its first calls"):
            call()
            n = _auto_range(call, min_time_us)
        result.append(_lane(name, call, n))
    return result


def _lane(name: str, call: Call, n: int) -> Lane:
    return Lane(name, "call", n, lambda: _loop_us(call, n) / n)


def _auto_range(call: Call, min_time_us: float) -> int:
    # The first figure is of a single call, mostly the clock's own cost where the function is
    # short; so grow step by step until the loop is seen to be long enough.
    n = 1
    while n < _MOST_CALLS:
        us = _loop_us(call, n)
        if us >= min_time_us:
            break
        n = min(10 * n, max(n + 1, calls_for(min_time_us, us / n, _MOST_CALLS)))
    return n


def _loop_us(call: Call, n: int) -> float:
    start = perf_counter_ns()
    for _ in repeat(None, n):
        call()
    if torch.cuda.is_initialized():
        # Inputs on the CPU do not keep a function from using a GPU. Its work must not be left
        # out; on an idle device this costs a few microseconds a loop.
        torch.cuda.synchronize()
    return (perf_counter_ns() - start) / 1e3
