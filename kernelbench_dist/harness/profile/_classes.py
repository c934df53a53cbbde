"""Which class a kernel is in, and its speed of light, from figures that were measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelbench_dist._peaks import Peaks
from kernelbench_dist.harness.profile._counters import KernelCounters
from kernelbench_dist.harness.profile._results import (
    Analysis,
    Class,
    CounterLight,
    KernelProfile,
    RooflineLight,
    TimeClass,
    Times,
)

LAUNCH_FLOORS = 3
"""empty kernels: who takes less than so many is launch-bound"""
BUSY_PERCENT = 40
"""of peak: with neither memory nor a pipe above it, a kernel waits for latency"""


def in_us(us: float) -> str:
    """
    >>> in_us(0.7213), in_us(7652.4)
    ('0.721 us', '7652 us')
    """
    return f"{us:.3g} us" if us < 1000 else f"{us:.0f} us"


def of_kernel(counters: KernelCounters) -> Class | None:
    """By one kernel's counters alone; None where those of memory or of the pipes are missing."""
    return _by_counters([counters])


def of_call(
    times: Times | None,
    kernels: Sequence[KernelProfile],
    light: RooflineLight | None,
    analysis: Analysis | None,
) -> Class | None:
    """Of a whole call: by its time, else by counters, else by what the problem costs."""
    launch = _by_time(times)
    if launch is not None:
        return launch
    return _by_counters([k.counters for k in kernels]) or _by_cost(light, analysis)


def _by_time(times: Times | None) -> Class | None:
    if times is None or times.warm_us is None or not times.empty_warm_us:
        return None
    if times.warm_us >= LAUNCH_FLOORS * times.empty_warm_us:
        return None
    return Class(
        name="launch-bound",
        because=f"{in_us(times.warm_us)} of device time (warm L2) are under {LAUNCH_FLOORS} empty "
        f"kernels of {in_us(times.empty_warm_us)}: {in_us(times.warm_us - times.empty_warm_us)} "
        "above one",
        source="timer",
    )


def _by_counters(kernels: Sequence[KernelCounters]) -> Class | None:
    memory = _weighted(kernels, lambda k: k.memory_unit and k.memory_unit[1])
    pipe = _weighted(kernels, lambda k: k.pipe and k.pipe[1])
    if memory is None or pipe is None:
        return None
    longest = max(kernels, key=lambda k: k.time_us or 0.0)
    assert longest.memory_unit is not None
    assert longest.pipe is not None
    said = (
        f"{longest.memory_unit[0]} at {memory:.3g} % of its peak, and the busiest pipe "
        f"({longest.pipe[0]}) at {pipe:.3g} %"
    )
    if len(kernels) > 1:
        said += ", by time over all kernels"
    if max(memory, pipe) <= BUSY_PERCENT:
        return Class(
            name="latency-bound", because=f"{said}: neither above {BUSY_PERCENT} %",
            source="counters",
        )  # fmt: skip
    name: TimeClass = "memory-bound" if memory >= pipe else "compute-bound"
    return Class(name=name, because=said, source="counters")


def _by_cost(light: RooflineLight | None, analysis: Analysis | None) -> Class | None:
    if light is None or analysis is None:
        return None
    percent = 100 * light.fraction
    said = f"the problem's least time is {percent:.3g} % of what it took, without counters"
    if percent <= BUSY_PERCENT or light.limit == "launch":
        return Class(
            name="latency-bound", because=f"{said}: not above {BUSY_PERCENT} %", source="analysis"
        )
    name: TimeClass = "memory-bound" if light.limit == "memory" else "compute-bound"
    return Class(
        name=name, because=f"{said}, and {light.limit} is what the least time is of",
        source="analysis",
    )  # fmt: skip


def analysis_of(nbytes: int, flops: int, source: str, peaks: Peaks | None) -> Analysis:
    """The problem's cost beside the device's peaks, where they are known."""
    rate = peaks.flops_per_s if peaks else None
    return Analysis(
        bytes_moved=nbytes,
        flops=flops,
        cost_source=source,
        intensity=flops / nbytes if nbytes else None,
        ridge_point=rate / peaks.bytes_per_s if peaks and rate else None,
        peak_bytes_per_s=peaks.bytes_per_s if peaks else None,
        peak_flops_per_s=rate,
        peak_source=peaks.source if peaks else None,
    )


def roofline_light(
    analysis: Analysis, peaks: Peaks | None, times: Times | None
) -> RooflineLight | None:
    """None without device time, or where the device's peaks are not known."""
    if peaks is None or times is None:
        return None
    cold = times.cold_us is not None and times.empty_cold_us is not None
    time_us = times.cold_us if cold else times.warm_us
    empty_us = times.empty_cold_us if cold else times.empty_warm_us
    if not time_us or empty_us is None:
        return None
    memory_us, compute_us = peaks.least_us(analysis.bytes_moved, analysis.flops)
    least_us = max(memory_us, compute_us, empty_us)
    fraction = least_us / time_us
    return RooflineLight(
        # Who takes less than an empty kernel did does so by the noise of the clock.
        fraction=min(fraction, 1.0) if least_us == empty_us else fraction,
        least_us=least_us,
        limit="launch"
        if least_us == empty_us
        else "memory"
        if memory_us >= compute_us
        else "compute",
        time_us=time_us,
        time_kind="cold" if cold else "warm",
        empty_us=empty_us,
    )


def counter_light(kernels: Sequence[KernelCounters]) -> CounterLight | None:
    percent = _weighted(kernels, lambda k: k.speed_of_light_percent)
    if percent is None:
        return None
    return CounterLight(
        percent=percent,
        sm_percent=_weighted(kernels, lambda k: k.sm_percent),
        memory_percent=_weighted(kernels, lambda k: k.memory_percent),
    )


def _weighted(
    kernels: Sequence[KernelCounters], value: Callable[[KernelCounters], float | None]
) -> float | None:
    """The mean over kernels, each weighted by its time; None where one lacks the value."""
    total = weighted = 0.0
    for kernel in kernels:
        found = value(kernel)
        if found is None or kernel.time_us is None:
            return None
        total += kernel.time_us
        weighted += found * kernel.time_us
    return weighted / total if total else None
