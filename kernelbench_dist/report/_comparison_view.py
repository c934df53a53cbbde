"""Submissions side by side: their times, the ratios with intervals, and who is faster than whom."""

from __future__ import annotations

from kernelbench_dist.harness._compare_submissions import ComparisonResult, Entrant
from kernelbench_dist.report._figures import KINDS, figure, one_line, sizes
from kernelbench_dist.report._parts import Cell, CellTone, Section, Table, table
from kernelbench_dist.report._plots import WIDTH, Picture, distribution
from kernelbench_dist.report._svg import Axis, Svg, cut
from kernelbench_dist.timing import Ratio
from kernelbench_dist.timing._stats import PRACTICAL_THRESHOLD

TONES: dict[str, CellTone] = {"faster": "good", "slower": "bad", "same": "dim"}


def section(result: ComparisonResult) -> Section:
    parts: list[Picture | Table] = [_ranked(result)]
    if result.timing is not None and result.ranking:
        parts.append(_intervals(result))
        parts.append(distribution(result.timing, result.timing.kind, result.timing_of))
        if len(result.ranking) > 1:
            parts.append(_matrix(result))
    return Section("comparison", "Side by side", tuple(parts), side_by_side=True)


def _ranked(result: ComparisonResult) -> Table:
    """All entrants, the fastest first, and those that were not timed at the end."""
    order = [*result.ranking, *(e.name for e in result.entrants if e.name not in result.ranking)]
    by_name = {e.name: e for e in result.entrants}
    rows = [_row(result, by_name[name], i) for i, name in enumerate(order, 1)]
    caption, timing = "", result.timing
    if timing is not None:
        caption = (
            f"{KINDS[timing.kind]}, at sizes {sizes(result.timing_sizes)}; all took turns "
            f"in the same {timing.rounds} rounds, on {timing.environment.device_name}. "
            "Intervals are 99 %; less than 2 % is called the same."
        )
    columns = (
        "#",
        "submission",
        "verdict",
        "time a call",
        "of the reference's",
        "speed",
        "launches",
        "reason",
    )
    return table("Ranking", columns, rows, figures=(0, 3, 4, 6), caption=caption, sorts=True)


def _row(result: ComparisonResult, e: Entrant, place: int) -> tuple[Cell | str, ...]:
    verdict = Cell(str(e.verdict), tone="good" if e.passed else "bad")
    launches = "" if e.launches is None else str(e.launches.kernels)
    if result.timing is None or e.name not in result.ranking:
        reason = one_line(e.reason, 200)
        return Cell("-", place), one_line(e.name, 120), verdict, "", "", "", launches, reason
    t = result.timing[e.name].timing(result.timing.kind)
    assert t is not None
    ratio = result.ratio(e.name, result.timing.baseline)
    best = "best" if place == 1 else ""
    return (
        Cell(str(place), place, best),  # type: ignore[arg-type]
        one_line(e.name, 120),
        verdict,
        Cell(figure(t.median_us, "us"), t.median_us),
        Cell(_said(ratio), ratio.ratio),
        Cell(ratio.verdict, tone=TONES[ratio.verdict]),
        launches,
        "",
    )


def _said(r: Ratio) -> str:
    return f"{r.ratio:.3f} [{r.low:.3f}, {r.high:.3f}]"


def _matrix(result: ComparisonResult) -> Table:
    """Each row's time over each column's."""
    names = result.ranking
    rows: list[tuple[Cell | str, ...]] = []
    for name in names:
        row: list[Cell | str] = [one_line(name, 80)]
        for other in names:
            if name == other:
                row.append(Cell("·", tone="dim"))
                continue
            r = result.ratio(name, other)
            row.append(Cell(f"{r.ratio:.3f} {r.verdict}", r.ratio, TONES[r.verdict]))
        rows.append(tuple(row))
    columns = ("row over column", *(one_line(n, 40) for n in names))
    return table(
        "Every two of them",
        columns,
        rows,
        figures=tuple(range(1, len(columns))),
        caption="The time of the row's submission over the column's, from the same rounds.",
    )


def _intervals(result: ComparisonResult) -> Picture:
    """The ratio to the fastest, with its interval, and the band within which nothing is claimed."""
    first, *others = result.ranking
    title = "Time over that of the fastest"
    if not others:
        return Picture(title, missing=f"{first} alone was timed")
    ratios = [result.ratio(name, first) for name in others]
    least = min(1 / (1 + PRACTICAL_THRESHOLD), *(r.low for r in ratios))
    most = max(1 + PRACTICAL_THRESHOLD, *(r.high for r in ratios))
    log = most > 4 * least
    margin = 0.0 if log else 0.08 * (most - least)
    x = Axis((least - margin) / (1.1 if log else 1), (most + margin) * (1.1 if log else 1), 8,
             WIDTH - 8, log=log)  # fmt: skip
    bottom = 8 + 40.0 * len(result.ranking)
    svg = Svg(WIDTH, bottom + 34, title)
    band = (x(1 / (1 + PRACTICAL_THRESHOLD)), x(1 + PRACTICAL_THRESHOLD))
    svg.add(
        "rect", "noise", "within 2 %: the same", x=band[0], y=8, width=band[1] - band[0],
        height=bottom - 8,
    )  # fmt: skip
    for tick in x.ticks():
        svg.line("grid", x(tick), 8, x(tick), bottom)
        svg.text(x(tick), bottom + 14, f"{tick:.4g}", at="middle")
    svg.line("axis", 8, bottom, WIDTH - 8, bottom)
    svg.text(
        WIDTH / 2, bottom + 29, f"ratio of medians{', logarithmic' if log else ''}", at="middle"
    )
    for i, name in enumerate(result.ranking):
        y = 8 + 40.0 * i
        svg.text(12, y + 14, cut(name, 44), "name mine")
        if name == first:
            svg.add("circle", "point best", f"{name}: the fastest", cx=x(1.0), cy=y + 26, r=4.5)
            svg.text(WIDTH - 12, y + 14, "fastest", "value", at="end")
            continue
        r = ratios[i - 1]
        svg.text(WIDTH - 12, y + 14, f"{r.verdict} {_said(r)}", "value", at="end")
        svg.line("whisker mine", x(r.low), y + 26, x(r.high), y + 26)
        svg.add("circle", "point mine", f"{name}: {_said(r)}", cx=x(r.ratio), cy=y + 26, r=4.5)
    caption = (
        f"{KINDS[ratios[0].kind]}; the whisker is the 99 % interval, and within the shaded 2 % two "
        "are the same."
    )
    return Picture(title, svg.markup(), caption)
