"""Lines of a report: labelled paragraphs, tables, and quoted text, at most `WIDTH` wide."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kernelbench_dist.report._figures import printable

WIDTH = 100
_LABEL = 10


def paragraph(label: str, text: str) -> Iterator[str]:
    """A label, and its text beside it on as many lines as it takes."""
    yield from textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"{label:<{_LABEL - 1}} ",
        subsequent_indent=" " * _LABEL,
        break_on_hyphens=False,
        break_long_words=False,
    ) or [label]


def unbroken(label: str, text: str) -> Iterator[str]:
    """A label, and its text on one line however long it is: commands are copied from here."""
    yield f"{label:<{_LABEL - 1}} {text}"


def quoted(text: str, most: int, *, end: bool = True) -> Iterator[str]:
    """The last (or first) lines of text that is not the judge's own, each marked as a quotation."""
    lines = [printable(line.expandtabs(4).rstrip()) for line in text[-20_000:].splitlines()]
    lines = [line for line in lines if line]
    left_out = len(lines) - most
    if left_out > 0 and end:
        yield f"  | ... {left_out} lines before"
    for line in lines[-most:] if end else lines[:most]:
        yield "  | " + (line if len(line) <= 2 * WIDTH else line[: 2 * WIDTH - 4] + " ...")
    if left_out > 0 and not end:
        yield f"  | ... {left_out} more lines"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Columns of text; those after the first that hold figures alone stand on the right.

    Figures are never broken.
    """
    cells = [list(row) for row in rows]
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, column in enumerate(columns):
        figures = i > 0 and all(not row[i] or row[i][0] in "-.0123456789" for row in cells)
        drawn.add_column(
            Text(column), justify="right" if figures else "left", overflow="fold", no_wrap=figures
        )
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    yield from ("  " + line for line in rendered([drawn], WIDTH - 2))


def rendered(items: Iterable[RenderableType], width: int = WIDTH) -> list[str]:
    """What rich makes of renderables, as plain lines without empty ones."""
    buffer = io.StringIO()
    console = Console(
        file=buffer, width=width, force_terminal=False, color_system=None, highlight=False
    )
    for item in items:
        console.print(item)
    return [line.rstrip() for line in buffer.getvalue().splitlines() if line.strip()]
