"""The report's pictures. Each says where its numbers come from, or why it is not drawn."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from kernelbench_dist.harness._results import Output, SpeedOfLight
from kernelbench_dist.report._figures import KINDS, decimal, figure, one_line, shape
from kernelbench_dist.report._svg import Axis, Svg, cut
from kernelbench_dist.timing import BenchResult
from kernelbench_dist.timing._result import Kind, Timing

WIDTH = 460.0


@dataclass(frozen=True)
class Picture:
    """A drawing and the sentence under it; without a drawing, `missing` says why."""

    title: str
    svg: Markup | None = None
    caption: str = ""
    missing: str = ""


# The distribution of times

_ROW = 46.0
_DOT = 2.6


def distribution(timing: BenchResult, kind: Kind, of: str | None = None) -> Picture:
    """Every sample of every candidate as a dot, with the median and its interval.

    On a GPU also the empty kernel's, which is the floor; an empty Python function says nothing.
    """
    title = f"Distribution of {KINDS[kind]}"
    on_gpu = timing.environment.device.startswith("cuda")
    shown = (*timing.candidates, timing.empty) if on_gpu else timing.candidates
    rows = [(c.name, t) for c in shown if (t := c.timing(kind)) is not None]
    if not rows:
        return Picture(title, missing=f"{KINDS[kind]} was not measured")
    axis = _times_axis([t for _, t in rows])
    svg = Svg(WIDTH, 40 + _ROW * len(rows), title)
    bottom = 8 + _ROW * len(rows)
    _x_axis(svg, axis, bottom, 8, f"us a call{', logarithmic' if axis.log else ''}")
    for i, (name, t) in enumerate(rows):
        own = _series(name, timing)
        y = 8 + _ROW * i
        svg.text(8, y + 12, cut(name, 40), f"name {own}")
        beyond = sum(not axis.low <= us <= axis.high for us in t.samples_us)
        aside = f" ({beyond} beyond)" if beyond else ""
        svg.text(WIDTH - 8, y + 12, figure(t.median_us, "us") + aside, "value", at="end")
        svg.add(
            "rect",
            f"band {own}",
            f"99 % interval on the median: {figure(t.median_low_us)} to "
            f"{figure(t.median_high_us, 'us')}",
            x=axis(_within(t.median_low_us, axis)),
            y=y + 18,
            width=max(
                1.5, axis(_within(t.median_high_us, axis)) - axis(_within(t.median_low_us, axis))
            ),
            height=22.0,
        )
        _dots(svg, axis, t.samples_us, y + 36, own)
        x = axis(_within(t.median_us, axis))
        svg.line(f"median {own}", x, y + 17, x, y + 41, f"median {figure(t.median_us, 'us')}")
    whose = f", of {of}" if of else ""
    caption = (
        f"A dot is a sample, the mean of one call over {rows[0][1].calls} calls or so; the bar is "
        f"the median, the band its 99 % interval. {timing.rounds} rounds in turns, by "
        f"{_method(timing, kind)}, on {timing.environment.device_name}{whose}."
    )
    return Picture(title, svg.markup(), caption)


def _method(timing: BenchResult, kind: Kind) -> str:
    if kind == "call":
        return "the wall clock of a loop of calls"
    return {
        "graph": "a CUDA graph replayed between two events",
        "events": "two events around the calls",
        "wall": "the wall clock with a device-wide synchronisation",
    }[timing.method]


def _times_axis(all_times: Sequence[Timing]) -> Axis:
    """From the least sample to a little over the p95; what lies beyond is counted."""
    low = min(t.min_us for t in all_times)
    high = max(max(t.p95_us, t.median_high_us) for t in all_times)
    if high > 5 * low > 0:
        return Axis(low / 1.15, high * 1.3, 8, WIDTH - 8, log=True)
    margin = 0.08 * (high - low) or 0.05 * high or 1.0
    return Axis(max(0.0, low - margin), high + margin, 8, WIDTH - 8)


def _dots(svg: Svg, axis: Axis, samples_us: Sequence[float], y: float, own: str) -> None:
    stacked: Counter[int] = Counter()
    for us in samples_us:
        if not axis.low <= us <= axis.high:
            continue
        column = round(axis(us) / (2 * _DOT))
        up = min(stacked[column] * 2 * _DOT, 16.0)
        stacked[column] += 1
        svg.add("circle", f"dot {own}", cx=axis(us), cy=y - up, r=_DOT)


# The roofline


@dataclass(frozen=True)
class Ceiling:
    """Rates that nothing exceeds, or that were reached on this device; `source` says which."""

    source: str
    bytes_per_s: float
    flops_per_s: float | None
    measured: bool


def roofline(
    light: SpeedOfLight | None,
    timing: BenchResult | None,
    measured: Mapping[str, Any] | None,
    why_not: str,
) -> Picture:
    """Rate over arithmetic intensity, under the ceilings. why_not: where there is no bound.

    measured: "bytes_per_s", "flops_per_s" and "source" of rates that this device has reached.
    """
    title = "Roofline"
    if light is None:
        return Picture(title, missing=why_not)
    ceilings = [Ceiling(light.peak_source, light.peak_bytes_per_s, light.peak_flops_per_s, False)]
    if measured and measured.get("bytes_per_s"):
        ceilings.append(
            Ceiling(
                str(measured.get("source") or "measured on this device"),
                float(measured["bytes_per_s"]),
                measured.get("flops_per_s"),
                True,
            )
        )
    if light.flops <= 0 or light.bytes_moved <= 0 or light.peak_flops_per_s is None:
        lacks = "no rate of arithmetic is known for this GPU"
        if light.flops <= 0 or light.bytes_moved <= 0:
            lacks = "the problem's cost has no FLOPs, or no bytes"
        return Picture(title, missing=f"{lacks}, so that there is no arithmetic intensity")
    intensity = light.flops / light.bytes_moved
    points = [("submission", light.time_us)]
    theirs = timing["reference"].timing(light.time_kind) if timing else None  # type: ignore[arg-type]
    if theirs is not None:
        points.append(("reference", theirs.median_us))
    svg = _roofline(intensity, light.flops, points, ceilings)
    drawn = "; ".join(
        f"{'dashed' if c.measured else 'solid'}: {c.source}, {decimal(c.bytes_per_s, 'B/s')} and "
        f"{decimal(c.flops_per_s, 'FLOP/s')}"
        for c in ceilings
    )
    caption = (
        f"{decimal(light.flops, 'FLOP')} over {decimal(light.bytes_moved, 'B')} (by "
        f"{light.cost_source}), {light.time_kind} L2. Ceilings, {drawn}. "
        f"The fraction is the time at the ceiling over the time measured."
    )
    return Picture(title, svg.markup(), caption)


def _roofline(
    intensity: float, flops: int, points: list[tuple[str, float]], ceilings: list[Ceiling]
) -> Svg:
    ridges = [c.flops_per_s / c.bytes_per_s for c in ceilings if c.flops_per_s]
    rates = [flops / us * 1e6 for _, us in points]
    x = Axis(min(intensity, *ridges) / 10, max(intensity, *ridges) * 10, 52, WIDTH - 10, log=True)
    top = max(*(3 * c.flops_per_s for c in ceilings if c.flops_per_s), 2 * max(rates))
    least = min(*rates, min(c.bytes_per_s for c in ceilings) * intensity, top) / 4
    y = Axis(least, top, 252, 8, log=True)
    svg = Svg(WIDTH, 292, "Roofline")
    for tick in y.ticks():
        svg.line("grid", x.start, y(tick), x.end, y(tick))
        svg.text(x.start - 6, y(tick) + 4, decimal(tick, ""), "label", at="end")
    _x_axis(svg, x, 252, 8, "FLOP a byte")
    svg.text(x.start + 6, 20, "FLOP/s")
    for c in ceilings:
        kind = "ceiling measured" if c.measured else "ceiling"
        start = max(x.low, y.low / c.bytes_per_s)
        peak = c.flops_per_s or top
        ridge = min(max(peak / c.bytes_per_s, start), x.high)
        line = [
            (x(start), y(start * c.bytes_per_s)),
            (x(ridge), y(min(ridge * c.bytes_per_s, top))),
        ]
        line += [(x.end, y(peak))] if c.flops_per_s else []
        svg.path(kind, line, f"{c.source}: {decimal(c.bytes_per_s, 'B/s')}")
    roof = ceilings[0]
    limit = min(intensity * roof.bytes_per_s, roof.flops_per_s or math.inf)
    max_at = rates.index(max(rates))
    apart = y(min(rates)) - y(max(rates)) > 16 or len(rates) == 1
    svg.line("gap", x(intensity), y(limit), x(intensity), y(min(rates)))
    for i, ((name, us), rate) in enumerate(zip(points, rates, strict=True)):
        said = f"{name}: {decimal(rate, 'FLOP/s')}, {figure(rate / limit)} of the roof"
        svg.add("circle", f"point {_class(name)}", said, cx=x(intensity), cy=y(rate), r=5.5)
        left = x(intensity) > 0.62 * WIDTH
        svg.text(
            x(intensity) + (-12 if left else 12),
            y(rate) + (4 if apart else (-5, 14)[i != max_at]),
            f"{name} {figure(us, 'us')}",
            f"name {_class(name)}",
            at="end" if left else "start",
        )
    return svg


# The error map

ERROR_STEPS = (0.0, 0.01, 0.1, 0.5, 1.0, 10.0, 1000.0)
"""Shares of the bound up to which a tile has a colour; above 1 it is wrong."""


def error_map(output: Output | None, trial: int | None, why_not: str) -> Picture:
    """The largest error of each tile of an output, in shares of what was allowed there."""
    title = "Error map of the output"
    if output is None or output.error_map is None:
        return Picture(title, missing=why_not)
    m = output.error_map
    across, down = len(m.worst[0]), len(m.worst)
    side = (WIDTH - 60) / across
    tall = max(6.0, min(side, 300.0 / down, 40.0))
    wide = min(side, 3 * tall)
    svg = Svg(WIDTH, 30 + tall * down + 44, title)
    largest = max(max(row) for row in m.worst)
    for i, row in enumerate(m.worst):
        for j, share in enumerate(row):
            kind = f"tile e{error_step(share)}" + (" worst" if share == largest > 0 else "")
            svg.add(
                "rect",
                kind,
                f"{_span('rows', i, m.tile_rows, m.rows)}, "
                f"{_span('columns', j, m.tile_columns, m.columns)}: {figure(share)} of the bound",
                x=50 + wide * j,
                y=20 + tall * i,
                width=wide - 0.6,
                height=tall - 0.6,
            )
    svg.text(50, 14, f"columns 0 to {m.columns - 1}")
    svg.text(44, 20 + 11, "row 0", at="end")
    if m.rows > 1:
        svg.text(44, 20 + tall * down, str(m.rows - 1), at="end")
    _legend(svg, 20 + tall * down + 14)
    rank = f", rank {output.rank}" if output.rank else ""
    caption = (
        f"{one_line(output.name, 80)}{rank} of shape {shape(output.shape)}, trial {trial}: in each "
        f"tile of {m.tile_rows} x {m.tile_columns} elements the largest error over what was "
        f"allowed for its element, against float64. Up to 1 is right; the worst is "
        f"{figure(largest)}."
    )
    return Picture(title, svg.markup(), caption)


def error_step(share: float) -> int:
    """
    >>> [error_step(s) for s in (0.0, 0.005, 1.0, 1.01, float("inf"))]
    [0, 1, 4, 5, 7]
    """
    return next((i for i, most in enumerate(ERROR_STEPS) if share <= most), len(ERROR_STEPS))


def _span(what: str, i: int, size: int, all_of: int) -> str:
    return f"{what} {i * size} to {min((i + 1) * size, all_of) - 1}"


def _legend(svg: Svg, y: float) -> None:
    names = ["0", *(f"≤{figure(s).rstrip('0').rstrip('.')}" for s in ERROR_STEPS[1:4]), "≤1"]
    names += ["≤10", "≤1000", "more"]
    for i, name in enumerate(names):
        svg.add("rect", f"tile e{i}", x=50 + 50 * i, y=y, width=49.0, height=10.0)
        svg.text(50 + 50 * i + 24, y + 24, name, at="middle")


# What the pictures share


def _x_axis(svg: Svg, axis: Axis, bottom: float, top: float, name: str) -> None:
    for tick in axis.ticks():
        svg.line("grid", axis(tick), top, axis(tick), bottom)
        near_end = axis(tick) > svg.width - 24
        at = "end" if near_end else "middle" if axis(tick) > 24 else "start"
        svg.text(axis(tick), bottom + 14, _tick(tick), at=at)
    svg.line("axis", axis.start, bottom, axis.end, bottom)
    svg.text((axis.start + axis.end) / 2, bottom + 29, name, at="middle")


def _tick(value: float) -> str:
    return f"{value:.4g}" if 1e-4 <= abs(value) < 1e6 or value == 0 else decimal(value, "")


def _within(value: float, axis: Axis) -> float:
    return min(max(value, axis.low), axis.high)


def _series(name: str, timing: BenchResult) -> str:
    return "floor" if name == timing.empty.name else _class(name)


def _class(name: str) -> str:
    return {"reference": "theirs"}.get(name, "mine")
