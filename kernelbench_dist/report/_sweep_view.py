"""The index page of a sweep: what passed and how fast, a row for each verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.harness.sweep._result import short
from kernelbench_dist.report._comparison_view import TONES
from kernelbench_dist.report._figures import figure, one_line
from kernelbench_dist.report._parts import Cell, Section, Table, table
from kernelbench_dist.report._plots import Picture
from kernelbench_dist.report._svg import Axis, Svg
from kernelbench_dist.report._sweep import Row, fast_p

_WIDTH = 460.0
_SHOWN = (0.0, 0.5, 0.8, 1.0, 1.5, 2.0, 4.0)


def sections(rows: Sequence[Row]) -> list[Section]:
    overview = Section("overview", "Overview", (_curve(rows), _by_problem(rows)), side_by_side=True)
    return [overview, Section("verdicts", "Verdicts", (_verdicts(rows),))]


def _verdicts(rows: Sequence[Row]) -> Table:
    cells: list[tuple[Cell | str, ...]] = []
    for r in rows:
        cells.append(
            (
                short(r.problem),
                Cell(one_line(r.submission, 200), link=r.page),
                Cell(str(r.verdict), tone="good" if r.verdict is Verdict.PASSED else "bad"),
                Cell(_speedup(r), r.speedup),
                Cell(r.says or "", tone=TONES[r.says] if r.says else ""),
                Cell(figure(r.time_us, "us") if r.time_us else "", r.time_us),
                Cell(figure(r.reference_us, "us") if r.reference_us else "", r.reference_us),
                r.time_class or "",
                Cell("" if r.launches is None else str(r.launches), r.launches),
                Cell(figure(r.seconds, "s"), r.seconds),
                one_line(r.reason, 240),
            )
        )
    columns = (
        "problem",
        "submission",
        "verdict",
        "speedup",
        "speed",
        "time a call",
        "reference",
        "class",
        "launches",
        "judged in",
        "reason",
    )
    return table(
        "All verdicts",
        columns,
        cells,
        figures=(3, 5, 6, 8, 9),
        caption="The speedup is the reference's time over the submission's, with its 99 % "
        "interval.",
        sorts=True,
    )


def _speedup(r: Row) -> str:
    if r.speedup is None or r.speedup_low is None or r.speedup_high is None:
        return ""
    return f"{r.speedup:.3f} [{r.speedup_low:.3f}, {r.speedup_high:.3f}]"


def _by_problem(rows: Sequence[Row]) -> Table:
    verdicts = [v for v in Verdict if any(r.verdict is v for r in rows)]
    problems = sorted({r.problem for r in rows})
    cells: list[tuple[Cell | str, ...]] = []
    for problem in problems:
        counts = Counter(r.verdict for r in rows if r.problem == problem)
        found = [Cell(str(counts[v]) if counts[v] else "", counts[v]) for v in verdicts]
        cells.append((short(problem), *found))
    if len(problems) > 1:
        totals = Counter(r.verdict for r in rows)
        cells.append((Cell("all", tone="dim"), *(str(totals[v]) for v in verdicts)))
    columns = ("problem", *map(str, verdicts))
    return table("Verdicts by problem", columns, cells, figures=tuple(range(1, len(columns))))


def _curve(rows: Sequence[Row]) -> Picture:
    """fast_p: which share is right and more than p times as fast as the reference."""
    title = "fast_p"
    speeds = sorted(r.speedup for r in rows if r.verdict is Verdict.PASSED and r.speedup)
    if not speeds:
        return Picture(title, missing="nothing that passed was timed")
    x = Axis(min(0.5, speeds[0]) / 1.2, max(2.0, speeds[-1]) * 1.2, 54, _WIDTH - 10, log=True)
    y = Axis(0.0, 1.0, 220, 12)
    svg = Svg(_WIDTH, 262, "fast_p: the share that is right and faster than p")
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        svg.line("grid", x.start, y(share), x.end, y(share))
        svg.text(x.start - 6, y(share) + 4, f"{100 * share:.0f} %", at="end")
    for tick in x.ticks():
        svg.line("grid", x(tick), 12, x(tick), 220)
        svg.text(x(tick), 235, f"{tick:g}", at="middle")
    svg.line("unit", x(1.0), 12, x(1.0), 220, "as fast as the reference")
    svg.text((x.start + x.end) / 2, 254, "p, times as fast as the reference", at="middle")
    share = fast_p(rows, x.low)
    line = [(x.start, y(share))]
    for p in speeds:
        line += [(x(p), y(share))]
        share = fast_p(rows, p)
        line += [(x(p), y(share))]
    svg.path("curve", [*line, (x.end, y(share))])
    for p in speeds:
        svg.add("circle", "dot mine", f"speedup {figure(p)}", cx=x(p), cy=y(fast_p(rows, p)), r=2.8)
    said = ", ".join(f"{100 * fast_p(rows, p):.0f} % at {p:g}" for p in _SHOWN)
    passed = [r for r in rows if r.verdict is Verdict.PASSED]
    untimed = sum(r.speedup is None for r in passed)
    note = f" {untimed} that passed were not timed, and count at p = 0 alone." if untimed else ""
    caption = f"Of all {len(rows)} verdicts, those that passed and are more than p times as fast: "
    return Picture(title, svg.markup(), f"{caption}{said}.{note}")
