"""What a page is made of, whichever form it is written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernelbench_dist.report._plots import Picture

CellTone = Literal["", "good", "bad", "dim", "best"]


@dataclass(frozen=True)
class Cell:
    """`key` is what its column is sorted by, where that is not the text."""

    text: str
    key: float | None = None
    tone: CellTone = ""
    link: str | None = None


@dataclass(frozen=True)
class Table:
    """Rows under columns. `figures` are the columns that stand on the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    figures: frozenset[int] = frozenset()
    caption: str = ""
    sorts: bool = False


@dataclass(frozen=True)
class Note:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Quote:
    """Text that is not the judge's own, line by line, or a command to be copied."""

    title: str
    text: str


@dataclass(frozen=True)
class Code:
    """A file; without a text, `missing` says why."""

    title: str
    text: str | None
    missing: str = ""


Part = Picture | Table | Note | Quote | Code


@dataclass(frozen=True)
class Section:
    """`side_by_side`: parts that belong beside each other where there is room."""

    id: str
    title: str
    parts: tuple[Part, ...]
    side_by_side: bool = False


def table(
    title: str,
    columns: tuple[str, ...],
    rows: list[tuple[Cell | str, ...]],
    *,
    figures: tuple[int, ...] = (),
    caption: str = "",
    sorts: bool = False,
) -> Table:
    """A table of cells, of which plain text needs no more than itself."""
    assert all(len(row) == len(columns) for row in rows), title
    cells = tuple(tuple(c if isinstance(c, Cell) else Cell(c) for c in row) for row in rows)
    return Table(title, columns, cells, frozenset(figures), caption, sorts)
