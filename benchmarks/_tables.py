"""What the benchmark of all_gather_linear found: its records, its checks, and how it is shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from rich import box
from rich.console import Console
from rich.table import Table

from kernelbench_dist import ops
from kernelbench_dist.timing import BenchResult

# The example's sizes, and how it writes numbers and draws, are the benchmark's too.
sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))
from _gather_linear_shared import NOMINAL, Kind, Size, digits, draw, median
from _gather_linear_shared import SIZES as SIZES  # for the scripts
from _gather_linear_shared import parse_sizes as parse_sizes

LIMIT = 1.03  # of the reference, at every size


@dataclass
class Cell:
    """One size in one dtype. `share` is the largest error of the fused operator over its bound."""

    size: Size
    dtype: str
    plan: ops.Plan
    share: float
    first: BenchResult
    second: BenchResult | None = None  # where the first was over the limit; then this one counts

    @property
    def result(self) -> BenchResult:
        return self.second or self.first


@dataclass
class Check:
    name: str
    figure: float
    limit: float
    detail: str

    @property
    def word(self) -> str:
        return "ok" if self.figure <= self.limit else "FAILED"


@dataclass
class Extra:
    """What is measured at one size only."""

    kernels: BenchResult  # all versions, against the reference
    against_best: BenchResult | None  # fused against the better of our two simple kernels
    training: BenchResult  # forward + backward, eager
    wrong: list[str] = field(default_factory=list)


def kinds(result: BenchResult) -> list[Kind]:
    """Device time, or on a CPU the call time."""
    found: list[Kind] = ["warm", "cold"]
    return [kind for kind in found if result.empty.timing(kind) is not None] or ["call"]


TITLES: dict[Kind, str] = {
    "warm": "device time, warm L2",
    "cold": "device time, cold L2",
    "call": "call time",
}
Rows: TypeAlias = list[list[str]]


def checks_of(cells: Sequence[Cell], extra: Extra | None) -> list[Check]:
    checks = []
    if extra is not None:
        assert extra.against_best is not None, "there are baselines on a GPU"
        asked: list[tuple[str, BenchResult, Kind, float]] = [
            ("device time / the better one-warp kernel", extra.against_best, "warm", 1.05),
            ("device time / reference", extra.kernels, "warm", 0.5),
            ("eager call / reference", extra.kernels, "call", 0.45),
            ("eager forward + backward / reference", extra.training, "call", 0.6),
        ]
        for name, result, kind, limit in asked:
            r = result.ratio("fused", kind)
            detail = f"against {r.baseline}; {r.low:.3f} .. {r.high:.3f}"
            checks.append(Check(f"{NOMINAL} float32: {name}", r.ratio, limit, detail))
    again = sum(cell.second is not None for cell in cells)
    for kind in kinds(cells[0].result):
        worst = max(cells, key=lambda cell: cell.result.ratio("fused", kind).ratio)
        r = worst.result.ratio("fused", kind)
        checks.append(
            Check(
                f"every size and dtype: {TITLES[kind]} / reference, the largest",
                r.ratio,
                LIMIT,
                f"{worst.size} {worst.dtype}, {worst.plan.kernel}; {r.low:.3f} .. {r.high:.3f}; "
                f"of {len(cells)} cells {again} measured again",
            )
        )
    return checks


def kernel_text(plan: ops.Plan) -> str:
    """Its name, and (rows x outputs) of a tile with the lanes that share the inner dimension."""
    if plan.tiles is None:
        return plan.kernel
    return f"{plan.kernel} {'x'.join(map(str, plan.tiles))}, split {plan.split}"


def cell_table(cells: Sequence[Cell], kind: Kind) -> Rows:
    names = ("reference", "Linear alone", "fused")
    header = ["R x B x H x K", "kernel", *(f"{name} us" for name in names)]
    rows = [[*header, "fused / reference", "99 % interval", "verdict"]]
    for cell in cells:
        times = [digits(median(cell.result, name, kind)) for name in names]
        r = cell.result.ratio("fused", kind)
        ratio = [f"{r.ratio:.3f}", f"{r.low:.3f} .. {r.high:.3f}", r.verdict]
        rows.append([str(cell.size), kernel_text(cell.plan), *times, *ratio])
    return rows


def ratio_table(cells: Sequence[Cell], kind: Kind) -> Rows:
    dtypes = list(dict.fromkeys(cell.dtype for cell in cells))
    by_place = {(cell.size, cell.dtype): cell for cell in cells}
    rows = [["R x B x H x K", *dtypes]]
    for size in dict.fromkeys(cell.size for cell in cells):
        found = [by_place[size, dtype].result.ratio("fused", kind) for dtype in dtypes]
        rows.append([str(size), *(f"{r.ratio:.2f} {r.verdict}" for r in found)])
    return rows


def version_table(extra: Extra) -> Rows:
    """Every version at the nominal size: device times, what is over an empty kernel, call time."""
    found = [k for k in TITLES if extra.kernels.empty.timing(k) is not None]
    rows = [["version", *(f"{TITLES[k]}, us" for k in found)]]
    if "warm" in found:
        rows[0].append("warm, over empty, us")
    for candidate in (extra.kernels.empty, *extra.kernels.candidates):
        times = [candidate.timing(kind) for kind in found]
        row = [candidate.name, *(digits(t.median_us) for t in times if t is not None)]
        if candidate.warm is not None:
            over = candidate.warm.over_empty_us
            row.append("" if over is None else digits(over))
        rows.append(row)
    for name in ("reference", "fused"):
        time = digits(median(extra.training, name, "call"))
        row = [f"{name}, forward + backward", *([""] * len(found))]
        row[found.index("call") + 1] = time
        rows.append(row + [""] * (len(rows[0]) - len(row)))
    return rows


def sections(cells: Sequence[Cell], extra: Extra | None) -> Iterator[tuple[str, Rows]]:
    if extra is not None:
        yield f"{NOMINAL}, float32", version_table(extra)
    for kind in kinds(cells[0].result):
        yield f"fused / reference, {TITLES[kind]}", ratio_table(cells, kind)
    for dtype in dict.fromkeys(cell.dtype for cell in cells):
        for kind in kinds(cells[0].result):
            mine = [cell for cell in cells if cell.dtype == dtype]
            yield f"{dtype}, {TITLES[kind]}", cell_table(mine, kind)


def show(heading: str, cells: Sequence[Cell], extra: Extra | None, checks: Sequence[Check]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 130, highlight=False)
    console.print(heading)
    for title, rows in sections(cells, extra):
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for header in rows[0]:
            left = header in ("version", "R x B x H x K", "kernel", "verdict")
            table.add_column(header, justify="left" if left else "right")
        for row in rows[1:]:
            table.add_row(*row)
        console.print(table)
    for line in notes(cells, extra):
        console.print(f"* {line}", soft_wrap=True)
    console.print("\nChecks" if checks else "\nThe checks are of device time: not on a CPU")
    for check in checks:
        line = f"  {check.word:<6} {check.figure:.3f} <= {check.limit:<5g} {check.name}"
        console.print(f"{line} ({check.detail})", soft_wrap=True)


def notes(cells: Sequence[Cell], extra: Extra | None) -> Iterator[str]:
    for cell in cells:
        where = f"{cell.size} {cell.dtype}"
        if cell.share > 1:
            yield f"{where}: WRONG, an error is {cell.share:.3g} times its bound"
        if cell.result.reason is not None:
            yield f"{where}: timed by {cell.result.method}, since {cell.result.reason}"
        if cell.second is not None:
            ratios = (f"{cell.first.ratio('fused', k).ratio:.3f}" for k in kinds(cell.first))
            yield f"{where}: measured again, the ratio was {', '.join(ratios)}"
    for name in extra.wrong if extra is not None else []:
        yield f"{NOMINAL} float32: {name} is WRONG"


def markdown(heading: str, cells: Sequence[Cell], extra: Extra | None) -> str:
    lines = [heading]
    for title, (header, *rows) in sections(cells, extra):
        lines += ["", f"**{title}**", "", f"| {' | '.join(header)} |"]
        lines += [f"|{' --- |' * len(header)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def plot(path: Path, heading: str, cells: Sequence[Cell]) -> None:
    kind = kinds(cells[0].result)[0]
    lines: dict[str, list[tuple[Size, BenchResult]]] = {}
    for cell in cells:
        lines.setdefault(cell.dtype, []).append((cell.size, cell.result))
    draw(path, heading, TITLES[kind], kind, lines)
