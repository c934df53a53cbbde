"""What the CPU and the GPU timer share: a lane is one function timed in one way."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kernelbench_dist.timing._result import Kind

Call = Callable[[], object]


@dataclass(frozen=True)
class Lane:
    """`sample()` gives the time of one call in microseconds, the mean over `calls` calls."""

    name: str
    kind: Kind
    calls: int
    sample: Callable[[], float]


def calls_for(min_time_us: float, estimate_us: float, most: int) -> int:
    """How many calls fill the shortest window wanted, from 1 to `most`."""
    return max(1, min(most, math.ceil(min_time_us / max(estimate_us, 1e-3))))


@dataclass(frozen=True)
class blame:  # noqa: N801 (used as a function)
    """Turn an exception of a candidate into a RuntimeError that names it, with the cause kept.

    A class, since contextlib's generators let a StopIteration through as it is.
    """

    name: str
    when: str

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception):
            said = f"{type(error).__name__}: {error}"
            raise RuntimeError(f"candidate {self.name!r} failed {self.when}: {said}") from error


@contextmanager
def collector_off() -> Iterator[None]:
    """No garbage collection on its own accord; afterwards the collector is as it was."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
