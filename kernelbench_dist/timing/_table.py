"""A BenchResult as text for people. Only printing a result imports this module, and rich."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Iterator

from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kernelbench_dist.timing._result import KINDS, BenchResult, Candidate, Kind

_TITLES: dict[Kind, str] = {
    "warm": "device time, warm L2",
    "cold": "device time, cold L2",
    "call": "call time",
}
_COLOURS = {"faster": "green", "slower": "red", "same": "dim"}


def number(us: float) -> str:
    """Four significant digits, at most four decimals (0.1 ns), and no exponent."""
    digits_before_point = math.floor(math.log10(abs(us))) + 1 if us else 1
    return f"{us:.{max(0, 4 - max(0, digits_before_point))}f}"


def render(result: BenchResult) -> str:
    """Coloured for a terminal on stdout, plain text otherwise."""
    terminal = sys.stdout.isatty()
    # A pipe has no width; 120 columns hold the table with names of ordinary length.
    width = None if terminal else 120
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=terminal, width=width, highlight=False)
    for item in renderables(result, console.width):
        console.print(item)
    lines = [line.rstrip() for line in buffer.getvalue().splitlines()]
    return "\n".join(lines)


def renderables(result: BenchResult, width: int = 120) -> Iterator[RenderableType]:
    """The heading, a table for each kind that was measured, and the notes under them.

    In less than some 110 columns the tables leave out what says least, and cut nothing.
    """
    yield Text(_heading(result))
    for kind in KINDS:
        if result.empty.timing(kind) is not None:
            yield _table(result, kind, wide=width >= 110)
    for note in _notes(result):
        yield Text(f"* {note}")


def _heading(result: BenchResult) -> str:
    e = result.environment
    on_gpu = e.device.startswith("cuda")
    parts = [
        f"{e.device_name} ({e.device})",
        f"torch {e.torch}",
        f"CUDA {e.cuda}, driver {e.driver or 'not measured'}" if on_gpu else None,
        f"SM clock {e.clock_mhz} MHz" if e.clock_mhz else None,
        None if on_gpu else f"{e.threads} threads",
        f"{result.rounds} rounds",
        e.started_at,
    ]
    return " | ".join(p for p in parts if p)


def _table(result: BenchResult, kind: Kind, *, wide: bool) -> Table:
    title = _TITLES[kind] + (f", by {result.method}" if kind != "call" else ", wall clock")
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    table.add_column("", overflow="fold", min_width=8)
    for header in _COLUMNS if wide else _COLUMNS[:1]:
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column(f"time / {escape(result.baseline)}", justify="right", min_width=6)
    table.add_column("99 % interval", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for candidate in result.candidates:
        table.add_row(*_cells(candidate, kind, wide), *_ratio_cells(result, candidate, kind))
    table.add_row(*_cells(result.empty, kind, wide), "", "", "", style="dim")
    return table


_COLUMNS = ("median us", "99 % interval us", "p10 us", "p95 us", "over empty us")


def _cells(candidate: Candidate, kind: Kind, wide: bool) -> list[str]:
    t = candidate.timing(kind)
    assert t is not None, "every candidate of a run is measured in the same kinds"
    cells = [escape(candidate.name), number(t.median_us)]
    if not wide:
        return cells
    return [
        *cells,
        f"{number(t.median_low_us)} .. {number(t.median_high_us)}",
        number(t.p10_us),
        number(t.p95_us),
        "" if t.over_empty_us is None else number(t.over_empty_us),
    ]


def _ratio_cells(result: BenchResult, candidate: Candidate, kind: Kind) -> list[str | Text]:
    if candidate.name == result.baseline:
        return ["1", "", "baseline"]
    r = result.ratio(candidate.name, kind)
    word = r.verdict + (" *" if r.note else "")
    return [f"{r.ratio:.3f}", f"{r.low:.3f} .. {r.high:.3f}", Text(word, _COLOURS[r.verdict])]


def _notes(result: BenchResult) -> Iterator[str]:
    if result.environment.device.startswith("cuda"):
        for kind in KINDS:
            if result.empty.timing(kind) is None:
                yield f"{_TITLES[kind]}: not measured"
    if result.reason is not None:
        yield f"device time by {result.method}, not graph: {result.reason}"
    bound = [c.name for c in result.candidates if c.launch_bound]
    if bound:
        yield f"launch-bound (under three empty kernels): {', '.join(bound)}"
    seen: set[str] = set()
    for ratio in result.ratios:
        if ratio.note is not None and ratio.note not in seen:
            seen.add(ratio.note)
            yield ratio.note
