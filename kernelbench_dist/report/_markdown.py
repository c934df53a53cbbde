"""The report as Markdown: the same sections as the page, without its pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kernelbench_dist.report._cards import Card, cards
from kernelbench_dist.report._figures import printable, printable_lines
from kernelbench_dist.report._page import banner, facts
from kernelbench_dist.report._parts import Code, Note, Quote, Table
from kernelbench_dist.report._plots import Picture
from kernelbench_dist.report._sections import sections

if TYPE_CHECKING:
    from kernelbench_dist.report._document import Report

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&!$])")


def markdown(report: Report) -> str:
    """Text from a submission is escaped, also against HTML, or stands in a fence."""
    verdict, _, subtitle = banner(report)
    lines = [f"# {escaped(verdict)}: {escaped(report.title)}", ""]
    lines += [escaped(subtitle), ""] if subtitle else []
    lines += [" · ".join(map(escaped, facts(report))), ""] if facts(report) else []
    made = cards(report.result, report.profile)
    if made:
        lines += ["| what | figure | | from |", "| --- | ---: | --- | --- |"]
        lines += [_row(_card(card)) for card in made]
        lines.append("")
    for section in sections(report):
        lines += [f"## {section.title}", ""]
        for part in section.parts:
            lines += _part(part)
    return "\n".join(lines).rstrip() + "\n"


def escaped(text: str) -> str:
    """
    >>> escaped("a_b <script>|")
    'a\\\\_b \\\\<script\\\\>\\\\|'
    """
    return _SPECIAL.sub(r"\\\1", printable(text))


def _card(card: Card) -> tuple[str, ...]:
    if card.missing:
        return card.title, "", f"not measured: {card.missing}", ""
    bars = ", ".join(f"{bar.name} {bar.percent:.1f} %" for bar in card.bars)
    return (
        card.title,
        f"{card.figure} {card.unit}",
        "; ".join(part for part in (card.says, bars) if part),
        card.source,
    )


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(map(escaped, cells))} |"


def _part(part: Picture | Table | Note | Quote | Code) -> Iterator[str]:
    if isinstance(part, Table):
        yield from _table(part)
    elif isinstance(part, Note):
        yield from (escaped(part.text), "")
    elif isinstance(part, Quote):
        yield from (f"{escaped(part.title)}:", "", *fenced(part.text, ""), "")
    elif isinstance(part, Code):
        yield from (f"### {escaped(part.title)}", "")
        if part.text is None:
            yield from (f"not kept: {escaped(part.missing)}", "")
        else:
            yield from (*fenced(printable_lines(part.text), "python"), "")
    elif part.svg is None:
        yield from (f"{escaped(part.title)}: not drawn: {escaped(part.missing)}", "")


def _table(t: Table) -> Iterator[str]:
    if not t.rows:
        return
    if t.title:
        yield from (f"### {escaped(t.title)}", "")
    yield _row(t.columns)
    yield f"| {' | '.join('---:' if i in t.figures else '---' for i in range(len(t.columns)))} |"
    yield from (_row(tuple(cell.text for cell in row)) for row in t.rows)
    yield ""
    if t.caption:
        yield from (escaped(t.caption), "")


def fenced(text: str, language: str) -> list[str]:
    """The text in a fence that is longer than any run of backquotes in it.

    >>> fenced("a\\n```", "")
    ['````', 'a', '```', '````']
    """
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", *text.splitlines(), fence]
