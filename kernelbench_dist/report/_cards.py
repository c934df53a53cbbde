"""The cards of a report: one figure each, what it is made of, and where it comes from.

What was not measured has no figure, and a sentence that says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kernelbench_dist.harness._results import (
    CorrectnessResult,
    Launches,
    Output,
    Result,
    SubmitResult,
    Trial,
)
from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.report._figures import (
    KINDS,
    amount,
    counted,
    decimal,
    figure,
    number,
    one_line,
)
from kernelbench_dist.timing import BenchResult

Tone = Literal["good", "bad", "plain"]
Profile = Mapping[str, Any]

NO_PROFILE = "no profile is given: `kernelbench-dist profile-kernel` makes one"
_MOST_STALLS = 5
_CPU = "this ran on a CPU, where {}"


@dataclass(frozen=True)
class Bar:
    """A share of a whole, in percent."""

    name: str
    percent: float


@dataclass(frozen=True)
class Card:
    """`figure` and `unit` are the number; `says` is a line beside it. `missing`: why there is none.

    `source` is where the numbers come from.
    """

    title: str
    figure: str = ""
    unit: str = ""
    says: str = ""
    tone: Tone = "plain"
    rows: tuple[tuple[str, str], ...] = ()
    grid: tuple[tuple[str, ...], ...] = ()
    """figures that belong beside each other; the first row is their names"""
    bars: tuple[Bar, ...] = ()
    source: str = ""
    missing: str = ""


def cards(result: Result | None, profile: Profile | None) -> list[Card]:
    """All six of a whole judgement; of others, those that there can be."""
    if not isinstance(result, (SubmitResult, CorrectnessResult)):
        return [_stalls(profile)] if profile is not None else []
    stalls = [_stalls(profile)]
    if not isinstance(result, SubmitResult):
        return [_precision(result), *(stalls if profile is not None else [])]
    made = [_timing(result), _precision(result), _memory(result), _launches(result)]
    return [*made, _light(result, profile), *stalls]


def why_not(result: SubmitResult, what: str, on_cpu: str) -> str:
    """Why a figure of a submission is missing. on_cpu: what a CPU has instead."""
    if result.timing is None:
        if not result.passed:
            return f"the verdict, {result.verdict}, came before {what} is measured"
        return f"{what} was not measured"
    return _CPU.format(on_cpu) if _on_cpu(result.timing) else f"{what} was not measured"


def _on_cpu(timing: BenchResult) -> bool:
    return not timing.environment.device.startswith("cuda")


def _big(text: str) -> tuple[str, str]:
    """A figure and its unit."""
    value, _, unit = text.partition(" ")
    return value, unit


def _timing(result: SubmitResult) -> Card:
    timing = result.timing
    if timing is None:
        return Card("Time", missing=why_not(result, "time", "there is call time alone"))
    ratio = timing.ratio("submission")
    own = timing["submission"].timing(ratio.kind)
    assert own is not None
    value, unit = _big(figure(own.median_us, "us"))
    rows = [("device time", _CPU.format("there is call time alone"))] if _on_cpu(timing) else []
    grid: list[tuple[str, ...]] = [("us a call", "own", "reference", "empty", "above it")]
    for kind, name in KINDS.items():
        mine, theirs, floor = (
            c.timing(kind) for c in (timing["submission"], timing["reference"], timing.empty)
        )
        if mine is None or theirs is None or floor is None:
            continue
        us = (mine.median_us, theirs.median_us, floor.median_us, mine.over_empty_us)
        grid.append((name.removeprefix("device time, "), *map(figure, us)))
    if result.timing_of:
        rows.append(("whose", result.timing_of))
    rows.append(("waited for the device", figure(result.waited_seconds, "s")))
    how = {"graph": "replays of a CUDA graph", "events": "events", "wall": "the wall clock"}
    note = f"; {ratio.note}" if ratio.note else ""
    return Card(
        "Time",
        value,
        unit,
        f"{ratio.verdict}: {ratio.ratio:.3f} of the reference's {KINDS[ratio.kind]} "
        f"[{ratio.low:.3f}, {ratio.high:.3f}]{note}",
        {"faster": "good", "slower": "bad"}.get(ratio.verdict, "plain"),  # type: ignore[arg-type]
        tuple(rows),
        tuple(grid),
        source=f"{how[timing.method]}, {timing.rounds} rounds in turns with the reference; "
        "medians, 99 % bootstrap interval",
    )


def _precision(result: SubmitResult | CorrectnessResult) -> Card:
    worst = worst_output(result.trials)
    if worst is None:
        said = f"the verdict, {result.verdict}, came before answers are compared"
        return Card("Precision", missing="no answer was compared" if result.passed else said)
    i, output = worst
    share = output.share_of_bound
    passed = sum(t.passed for t in result.trials)
    bits = [t.bitwise_equal for t in result.trials if t.bitwise_equal is not None]
    ulp, error, bound = (
        number(v) for v in (output.worst_ulp, output.worst_error, output.worst_bound)
    )
    return Card(
        "Precision",
        figure(share),
        "of the bound",
        f"{passed} of {counted(len(result.trials), 'trial')} passed",
        "good" if passed == len(result.trials) else "bad",
        (
            ("worst error", f"{figure(error)} of {figure(bound)} allowed"),
            ("in ulp", figure(ulp)),
            ("at", f"trial {i}, {one_line(output.name, 60)}{list(output.worst_index or ())}"),
            ("max abs error", figure(output.max_abs_error)),
            ("mean abs error", figure(output.mean_abs_error)),
            ("max rel error", figure(output.max_rel_error)),
            ("wrong elements", f"{output.mismatches} of {output.elements}"),
            ("dtype", output.dtype),
            ("bits of two runs", f"the same in {sum(bits)} of {len(bits)}" if bits else "not run"),
        ),
        source="every element against the reference in float64",
    )


def worst_output(trials: Sequence[Trial]) -> tuple[int, Output] | None:
    """With its trial's number: of the trial that failed, or else of all."""
    numbered = list(enumerate(trials, 1))
    failed = [(i, t) for i, t in numbered if t.verdict is not Verdict.PASSED]
    found = [
        (output.share_of_bound, i, output)
        for i, trial in failed[:1] or numbered
        for output in trial.outputs
        if output.share_of_bound is not None
    ]
    if not found:
        return None
    _, i, output = max(found, key=lambda item: item[0])
    return i, output


def _memory(result: SubmitResult) -> Card:
    mine, theirs = result.memory, result.reference_memory
    if mine is None:
        said = "torch's CUDA allocator, which counts it, has no part"
        return Card("Memory", missing=why_not(result, "memory", said))
    value, unit = _big(amount(mine.peak_above_inputs_bytes))
    return Card(
        "Memory",
        value,
        unit,
        "peak of a call above its inputs and parameters",
        rows=(("reference", amount(theirs.peak_above_inputs_bytes if theirs else None)),),
        source=mine.source,
    )


def _launches(result: SubmitResult) -> Card:
    mine, theirs = result.launches, result.reference_launches
    if mine is None:
        return Card("Launches", missing=why_not(result, "launches", "nothing is launched"))
    share = figure(100 * mine.library_share, "%")
    return Card(
        "Launches",
        str(mine.kernels),
        "kernel a call" if mine.kernels == 1 else "kernels a call",
        f"fusion ratio {figure(result.fusion_ratio)}, the reference's kernels over these",
        rows=(
            ("copies, fills", f"{mine.copies}, {mine.fills}"),
            ("reference", _counts(theirs)),
            ("time not in its own kernels", share),
            *(("kernel", one_line(n, 90)) for n in list(dict.fromkeys(mine.names))[:4]),
        ),
        source="torch.profiler, the device's own record of one call",
    )


def _counts(launches: Launches | None) -> str:
    if launches is None:
        return "not measured"
    return (
        f"{counted(launches.kernels, 'kernel')}, {counted(launches.copies, 'copy', 'copies')}, "
        f"{counted(launches.fills, 'fill')}"
    )


def _light(result: SubmitResult, profile: Profile | None) -> Card:
    light = result.speed_of_light
    if light is None:
        said = why_not(result, "speed of light", "no peaks are known")
        if result.timing is not None and not _on_cpu(result.timing):
            said = "no peaks are known for this GPU"
        return Card("Speed of light", missing=said)
    return Card(
        "Speed of light",
        figure(100 * light.roofline_fraction),
        "% of the roofline",
        light.time_class,
        rows=(
            ("busiest unit, of its own peak", _by_counters(profile)),
            ("least time at the peaks", figure(light.floor_us, "us")),
            (f"time, {light.time_kind} L2", figure(light.time_us, "us")),
            ("bytes that must move", decimal(light.bytes_moved, "B")),
            ("work", decimal(light.flops, "FLOP")),
            ("peak of memory", decimal(light.peak_bytes_per_s, "B/s")),
            ("peak of arithmetic", decimal(light.peak_flops_per_s, "FLOP/s")),
        ),
        source=f"cost by {light.cost_source}, peaks by {light.peak_source}",
    )


def _by_counters(profile: Profile | None) -> str:
    """The other sense of the word, which needs counters."""
    light = (profile or {}).get("counter_light")
    return f"{figure(light['percent'], '%')} (counters)" if light else "not measured"


def _stalls(profile: Profile | None) -> Card:
    if profile is None:
        return Card("Stalls", missing=NO_PROFILE)
    counted = [k.get("counters") or {} for k in profile.get("kernels") or ()]
    counted = [c for c in counted if c.get("stalls")]
    if not counted:
        said = profile.get("counters_absent") or "the profile holds no counters of stalls"
        return Card("Stalls", missing=one_line(str(said)))
    # Kernels are kept apart: shares of one say nothing of another.
    longest = max(counted, key=lambda c: c.get("time_us") or 0.0)
    stalls = sorted(longest["stalls"], key=lambda s: -s["percent"])
    rest = sum(s["percent"] for s in stalls[_MOST_STALLS:])
    bars = [Bar(one_line(str(s["reason"]), 60), s["percent"]) for s in stalls[:_MOST_STALLS]]
    return Card(
        "Stalls",
        figure(stalls[0]["percent"]),
        "%",
        one_line(str(stalls[0]["reason"]), 60),
        rows=(("kernel", one_line(str(longest.get("name")), 120)),),
        bars=(*bars, Bar("all others", rest)) if rest > 0 else tuple(bars),
        source="hardware counters: shares of what warps waited for, together 100 %",
    )
