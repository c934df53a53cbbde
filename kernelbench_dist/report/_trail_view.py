"""The trail of tries: a time line with the best one marked, and a row for each call."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from kernelbench_dist.harness._trail import Delta, Entry
from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.report._figures import KINDS, NOT_MEASURED, counted, figure, one_line, sizes
from kernelbench_dist.report._parts import Cell, CellTone, Note, Section, Table, table
from kernelbench_dist.report._plots import Picture
from kernelbench_dist.report._svg import Axis, Svg

_WIDTH = 920.0


def best_of(trail: Sequence[Entry]) -> int | None:
    """The index of the fastest try that passed, under the conditions of the last that passed.

    Times under other conditions (sizes, dtype, device ...) are not comparable. A text that any
    call of the trail has found to be wrong is not the best, however often it passed.
    """
    wrong = {_judged(e) for e in trail if e.source_is_correct is False}
    timed = [i for i, e in enumerate(trail) if e.counts and _judged(e) not in wrong]
    if not timed:
        return None
    same = [i for i in timed if trail[i].conditions == trail[timed[-1]].conditions]
    return min(same, key=lambda i: trail[i].time_us or 0.0)


def _judged(e: Entry) -> tuple[str | None, ...]:
    return e.sha256, e.problem, e.dtype


def section(trail: Sequence[Entry]) -> Section:
    best = best_of(trail)
    parts = (_timeline(trail, best), _calls(trail, best))
    tokens = [e.tokens for e in trail if e.tokens is not None]
    spent = (
        _total("s in tools", [e.seconds for e in trail]),
        _total("s in the model", [e.model_seconds for e in trail]),
        _total("prompt tokens", [t.prompt for t in tokens]),
        _total("completion tokens", [t.completion for t in tokens]),
    )
    return Section("trail", "Trail of tries", (*parts, Note("; ".join(spent) + ".")))


def _total(unit: str, values: Sequence[float | None]) -> str:
    """The sum of what is known, and of how many calls it is."""
    known = [value for value in values if value is not None]
    if not known:
        return f"{unit}: {NOT_MEASURED}"
    total = str(sum(known)) if all(type(v) is int for v in known) else figure(sum(known))
    return f"{total} {unit} (of {counted(len(known), 'call')})"


def change(delta: Delta | None) -> Cell:
    """A difference of times; only beyond the noise is it called one."""
    if delta is None:
        return Cell("", tone="dim")
    said = f"{100 * delta.change:+.1f} %"
    if delta.within_noise:
        return Cell(f"unchanged ({said})", delta.change, "dim")
    return Cell(f"changed {said}", delta.change, "good" if delta.change < 0 else "bad")


def _calls(trail: Sequence[Entry], best: int | None) -> Table:
    rows: list[tuple[Cell | str, ...]] = []
    for i, e in enumerate(trail):
        f = e.figures
        verdict = str(e.verdict) if e.verdict else ("error" if e.reason else "")
        tone: CellTone = "dim"
        if verdict:
            tone = "good" if e.verdict is Verdict.PASSED else "bad"
        known = {True: "yes", False: "no", None: ""}[e.source_is_correct]
        rows.append(
            (
                Cell(str(i + 1) + (" ★" if i == best else ""), i, "best" if i == best else ""),
                one_line(e.tool, 40),
                Cell((e.sha256 or "")[:8], tone="dim"),
                Cell(verdict, tone=tone),
                known,
                Cell("" if e.time_us is None else figure(e.time_us, "us"), e.time_us),
                Cell(_ratio(e), f.ratio if f else None),
                change(e.delta_to_last),
                change(e.delta_to_best),
                Cell(figure(e.seconds, "s") if e.seconds is not None else "", e.seconds),
                Cell(
                    figure(e.model_seconds, "s") if e.model_seconds is not None else "",
                    e.model_seconds,
                ),
                one_line(e.reason, 120),
            )
        )
    return table(
        "Calls",
        (
            "#",
            "call",
            "source",
            "verdict",
            "right",
            "time a call",
            "of reference",
            "to the last",
            "to the best",
            "tool",
            "model",
            "reason",
        ),
        rows,
        figures=(0, 5, 6, 7, 8, 9, 10),
        caption="★ is the best try. A time has changed only where its ratio to the reference and "
        "that of the other try have 99 % intervals that lie apart; in between is noise.",
        sorts=True,
    )


def _ratio(e: Entry) -> str:
    f = e.figures
    if f is None or f.ratio is None:
        return ""
    if f.ratio_low is None or f.ratio_high is None:
        return f"{f.ratio:.3f}"
    return f"{f.ratio:.3f} [{f.ratio_low:.3f}, {f.ratio_high:.3f}]"


def _timeline(trail: Sequence[Entry], best: int | None) -> Picture:
    title = "Tries in order"
    if best is None:
        return Picture(title, missing="no call of the trail passed with a time")
    conditions = trail[best].conditions
    timed = [
        (i, e.time_us)
        for i, e in enumerate(trail)
        if e.counts and e.conditions == conditions and e.time_us is not None
    ]
    svg = _drawn(trail, timed, best)
    e = trail[best]
    kind = KINDS[e.figures.kind] if e.figures and e.figures.kind else "time"
    where = ", ".join(
        part for part in (e.problem, sizes(e.sizes), e.dtype, e.device_name or e.device) if part
    )
    others = sum(e.counts for e in trail) - len(timed)
    left_out = f" {others} timed under other conditions are not drawn." if others else ""
    caption = (
        f"{kind} of each submit that passed ({where}), with the 99 % interval of its ratio to the "
        f"reference; the line is the best so far, the ring the best of all. Marks below are calls "
        f"that took no time or did not pass.{left_out}"
    )
    return Picture(title, svg, caption)


def _drawn(trail: Sequence[Entry], timed: list[tuple[int, float]], best: int) -> Markup:
    svg = Svg(_WIDTH, 300, "Time of each try", "plot wide")
    ends = [v for i, us in timed for v in _interval(trail[i], us)]
    low, high = min(ends), max(ends)
    log = high > 5 * low
    pad = 1.25 if log else 1.0
    margin = 0 if log else 0.12 * (high - low) or 0.1 * high
    y = Axis(max(low - margin, 0.0) / pad, (high + margin) * pad, 226, 14, log=log)
    x = Axis(0.5, len(trail) + 0.5, 64, _WIDTH - 12)
    for tick in y.ticks(5):
        svg.line("grid", x.start, y(tick), x.end, y(tick))
        svg.text(x.start - 8, y(tick) + 4, figure(tick, "us"), at="end")
    svg.line("axis", x.start, 226, x.end, 226)
    step = max(1, -(-len(trail) // 24))
    for i in range(0, len(trail), step):
        svg.text(x(i + 1), 286, str(i + 1), at="middle")
    svg.text(x.start - 8, 256, "rest", at="end")
    so_far = float("inf")
    line: list[tuple[float, float]] = []
    for i, us in timed:
        if us < so_far:
            line += [(x(i + 1), y(so_far))] if line else []
            line.append((x(i + 1), y(us)))
            so_far = us
    line.append((x.end, y(so_far)))
    svg.path("so-far", line)
    shown = {i for i, _ in timed}
    for i, e in enumerate(trail):
        if i not in shown:
            passed = e.verdict is Verdict.PASSED
            kind = "good" if passed else "bad" if e.verdict or e.reason else "dim"
            said = (
                f"{i + 1}. {one_line(e.tool, 40)}: {e.verdict or one_line(e.reason, 80) or 'done'}"
            )
            _mark(svg, kind, x(i + 1), 252, said)
    for i, us in timed:
        a, b = _interval(trail[i], us)
        kind = "best" if i == best else "mine"
        svg.line(f"whisker {kind}", x(i + 1), y(a), x(i + 1), y(b))
        if i == best:
            svg.add("circle", "ring best", cx=x(i + 1), cy=y(us), r=9.0)
        said = f"{i + 1}. {one_line(trail[i].tool, 40)}: {figure(us, 'us')}"
        svg.add("circle", f"point {kind}", said, cx=x(i + 1), cy=y(us), r=4.5)
    right = x(best + 1) > 0.8 * _WIDTH
    svg.text(
        x(best + 1) + (-14 if right else 14),
        y(dict(timed)[best]) + 18,
        f"best: {figure(dict(timed)[best], 'us')}",
        "name best",
        at="end" if right else "start",
    )
    return svg.markup()


def _mark(svg: Svg, kind: str, x: float, y: float, hover: str) -> None:
    """A tick for what passed, a cross for what did not: not by the colour alone."""
    if kind == "bad":
        cross = f"M{x - 4:.2f},{y - 4:.2f} l8,8 m0,-8 l-8,8"
        svg.add("path", f"call {kind}", hover, d=cross)
    elif kind == "good":
        svg.add("path", f"call {kind}", hover, d=f"M{x - 5:.2f},{y:.2f} l4,4 l6,-8")
    else:
        svg.add("path", f"call {kind}", hover, d=f"M{x - 4:.2f},{y:.2f} l8,0")


def _interval(e: Entry, us: float) -> tuple[float, float]:
    """That of the ratio, as times: the time itself where none is known."""
    f = e.figures
    if f is None or not f.ratio or f.ratio_low is None or f.ratio_high is None:
        return us, us
    return us * f.ratio_low / f.ratio, us * f.ratio_high / f.ratio
