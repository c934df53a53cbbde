"""The figures of a whole submission: time, launches, memory and speed of light."""

from __future__ import annotations

from collections.abc import Iterator

from kernelbench_dist.harness._results import Launches, Memory, SpeedOfLight, SubmitResult
from kernelbench_dist.report._figures import (
    KINDS,
    NOT_MEASURED,
    amount,
    counted,
    decimal,
    figure,
    one_line,
    sizes,
)
from kernelbench_dist.report._layout import paragraph, rendered
from kernelbench_dist.timing import BenchResult
from kernelbench_dist.timing._table import renderables

_MOST_NAMES = 6


def measured(result: SubmitResult) -> Iterator[str]:
    """All that was measured, and one line for what was not."""
    absent = []
    if result.timing is not None:
        yield from _timing(result.timing, result)
    else:
        absent.append("time")
    if result.launches is not None:
        yield from paragraph("launches", _launches(result.launches))
        yield from paragraph("", f"reference: {_reference(result.reference_launches)}")
        yield from paragraph("", f"fusion ratio {figure(result.fusion_ratio)}")
    else:
        absent.append("launches")
    if result.memory is not None:
        yield from paragraph("memory", _memory(result.memory, result.reference_memory))
    else:
        absent.append("memory")
    if result.speed_of_light is not None:
        yield from _speed_of_light(result.speed_of_light)
    else:
        absent.append("speed of light")
    if absent:
        yield from paragraph("rest", f"{', '.join(absent)}: {NOT_MEASURED}")


def _timing(timing: BenchResult, result: SubmitResult) -> Iterator[str]:
    on_cpu = not timing.environment.device.startswith("cuda")
    marked = "CPU: call time only, " if on_cpu else ""
    marked += f"of {result.timing_of}; " if result.timing_of else ""
    waited = figure(result.waited_seconds, "s")
    yield from paragraph(
        "time",
        f"{marked}at sizes {sizes(result.timing_sizes)}; waited for the device: {waited}",
    )
    yield from ("  " + line for line in rendered(renderables(timing, 98), 98))
    for kind in KINDS:
        empty = timing.empty.timing(kind)
        if empty is None:
            continue
        over = []
        for candidate in timing.candidates:
            taken = candidate.timing(kind)
            excess = taken.over_empty_us if taken else None
            over.append(f"{candidate.name} {figure(excess, 'us')}")
        floor = f"{timing.empty.name} {figure(empty.median_us, 'us')}"
        yield f"  {KINDS[kind]}: {floor}; above it: {', '.join(over)}"


def _launches(launches: Launches) -> str:
    names = [one_line(name, 60) for name in dict.fromkeys(launches.names)]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    listed = f": {', '.join(names[:_MOST_NAMES])}{more}" if names else ""
    share = figure(100 * launches.library_share, "%")
    return f"{_counts(launches)} a call; {share} of their time is not in its own kernels{listed}"


def _reference(launches: Launches | None) -> str:
    return NOT_MEASURED if launches is None else f"{_counts(launches)} a call"


def _counts(launches: Launches) -> str:
    return ", ".join(
        (
            counted(launches.kernels, "kernel"),
            counted(launches.copies, "copy", "copies"),
            counted(launches.fills, "fill"),
        )
    )


def _memory(mine: Memory, theirs: Memory | None) -> str:
    other = amount(theirs.peak_above_inputs_bytes if theirs else None)
    return (
        f"peak above the inputs {amount(mine.peak_above_inputs_bytes)} (reference {other}), "
        f"by {mine.source}"
    )


def _speed_of_light(s: SpeedOfLight) -> Iterator[str]:
    yield from paragraph(
        "speed",
        f"roofline fraction (analysis) {figure(s.roofline_fraction)}: {figure(s.floor_us, 'us')} "
        f"at the peaks over {figure(s.time_us, 'us')} ({s.time_kind} L2); {s.time_class}",
    )
    yield from paragraph(
        "",
        f"{decimal(s.bytes_moved, 'B')} and {decimal(s.flops, 'FLOP')} (by {s.cost_source}) at "
        f"{decimal(s.peak_bytes_per_s, 'B/s')} and {decimal(s.peak_flops_per_s, 'FLOP/s')} "
        f"({s.peak_source})",
    )
