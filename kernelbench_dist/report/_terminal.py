"""Reports at a terminal: the same lines in colour, and the times as bars.

Rich leaves the colours out where NO_COLOR is set.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.bar import Bar
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kernelbench_dist.harness._compare_submissions import ComparisonResult
from kernelbench_dist.harness._results import Result, SubmitResult
from kernelbench_dist.report._figures import KINDS, figure, one_line

_BAR = 40
_WORDS = (
    (r"^[A-Z_]+(?=: )", "bold"),
    (r"^PASSED", "green"),
    (r"^(?!PASSED)[A-Z_]+(?=: )", "red"),
    (r"^[a-z][a-z ]{8} (?=\S)", "bold cyan"),
    (r"(?<=^class {5})[a-z-]+", "bold magenta"),
    (r"(?<=^answers {3})WRONG .*", "bold red"),
    (r"\bfaster\b", "green"),
    (r"\bslower\b", "red"),
    (r"\bnot measured\b", "dim"),
    (r"^ {2}\| .*", "dim"),
    (r"(?<= )error(?=:)", "bold red"),
    (r"(?<= )warning(?=:)", "yellow"),
)


def for_terminal(result: Result, width: int | None = None) -> str:
    """`str(result)` in colour, then a bar for each time that was compared."""
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=True, highlight=False, width=width)
    for line in str(result).splitlines():
        text = Text.from_ansi(line)
        for pattern, style in _WORDS:
            text.highlight_regex(pattern, style)
        console.print(text, soft_wrap=True)
    for item in _bars(result):
        console.print(item)
    return buffer.getvalue().rstrip("\n")


def _bars(result: Result) -> Iterator[RenderableType]:
    if not isinstance(result, (SubmitResult, ComparisonResult)) or result.timing is None:
        return
    timing = result.timing
    timed = [(c.name, t.median_us) for c in timing.candidates if (t := c.timing(timing.kind))]
    longest = max(us for _, us in timed)
    grid = Table.grid(padding=(0, 1))
    for name, us in sorted(timed, key=lambda item: item[1]):
        colour = "bright_black" if name == timing.baseline else "blue"
        grid.add_row(
            Text(f"  {one_line(name, 40)}"),
            Bar(longest, 0, us, width=_BAR, color=colour),
            Text(figure(us, "us")),
        )
    yield Text(f"\n  {KINDS[timing.kind]}")
    yield grid
