"""What a sweep returns: every verdict in short, and what was not judged. The log holds the rest."""

from __future__ import annotations

import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import ConfigDict, Field
from typing_extensions import Self

from kernelbench_dist.harness._results import Frozen
from kernelbench_dist.harness._verdicts import Verdict

SCHEMA: Literal["kernelbench_dist.sweep/1"] = "kernelbench_dist.sweep/1"
_SHOWN = 5


class SweepEntry(Frozen):
    """One verdict. `copies` are other files with the same contents for the same problem."""

    key: str
    submission: str
    problem: str
    verdict: Verdict
    reason: str
    seconds: float
    copies: tuple[str, ...] = ()


class NotJudged(Frozen):
    """A file without a verdict. `problem` is None where it was matched with none.

    `attempts` counts the times that this run tried; each ended in ENVIRONMENT_ERROR.
    """

    submission: str
    reason: str
    problem: str | None = None
    attempts: int = 0


class SweepResult(Frozen):
    """`str(result)` is a table; `results(result.log)` gives each verdict with all its figures.

    `judged_before` of the entries were in the log when the sweep began.
    """

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    schema_version: Literal["kernelbench_dist.sweep/1"] = Field(default=SCHEMA, alias="schema")
    log: str
    entries: tuple[SweepEntry, ...]
    not_judged: tuple[NotJudged, ...]
    judged_before: int
    started_at: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every file was judged, and passed."""
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """0 all passed, 1 some failed, 2 a file or a problem is of no use, 3 the environment."""
        codes = {e.verdict.exit_code for e in self.entries}
        codes |= {3 if n.attempts else 2 for n in self.not_judged}
        return max(codes, default=0)

    def counts(self, problem: str | None = None) -> dict[Verdict, int]:
        """How often each verdict was given, for one problem or for all, in Verdict's order."""
        found = Counter(e.verdict for e in self.entries if problem in (None, e.problem))
        return {verdict: found[verdict] for verdict in Verdict if found[verdict]}

    def to_dict(self) -> dict[str, Any]:
        return {"tool": "sweep", **self.model_dump(mode="json", by_alias=True)}

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`. ValueError where the schema or the tool is another one."""
        fields = dict(data)
        if (tool := fields.pop("tool", "sweep")) != "sweep":
            raise ValueError(f"tool is {tool!r}, and 'sweep' is accepted")
        return cls.model_validate(fields)

    def __str__(self) -> str:
        return _text(self)


def short(problem: str) -> str:
    """level2/47 for level2/47_virtual_all_gather_concat_linear.

    >>> short("level2/47_virtual_all_gather_concat_linear"), short("my_problem")
    ('level2/47', 'my_problem')
    >>> short("level2/47_virtual_all_gather_concat_linear@4")
    'level2/47@4'
    """
    return re.sub(r"^(\w+/\d+)_[^@]*", r"\1", problem)


def _text(result: SweepResult) -> str:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    def table(title: str, *columns: str, rows: Iterable[Iterable[str]]) -> Table:
        made = Table(
            title=title,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )
        for i, column in enumerate(columns):
            made.add_column(column, overflow="fold", justify="right" if i in numbers else "left")
        for row in rows:
            made.add_row(*(escape(cell) for cell in row))
        return made

    terminal = sys.stdout.isatty()
    buffer = io.StringIO()
    console = Console(
        file=buffer, force_terminal=terminal, width=None if terminal else 120, highlight=False
    )
    judged, left = len(result.entries), len(result.not_judged)
    copies = sum(len(e.copies) for e in result.entries)
    same = f"{copies} more with the same contents as one of these, " if copies else ""
    console.print(
        f"{judged} judged ({result.judged_before} of them before), {same}{left} not judged, "
        f"{result.seconds:.0f} s",
        markup=False,
    )
    numbers: set[int] = set()
    verdicts = list(result.counts())
    if verdicts:
        problems = sorted({e.problem for e in result.entries})
        rows = [[short(p), *(str(result.counts(p).get(v, "")) for v in verdicts)] for p in problems]
        if len(problems) > 1:
            rows.append(["all", *(str(n) for n in result.counts().values())])
        numbers = set(range(1, len(verdicts) + 1))
        console.print(table("verdicts", "problem", *map(str, verdicts), rows=rows))
        slow = sorted(result.entries, key=lambda e: -e.seconds)[:_SHOWN]
        numbers = {0}
        console.print(
            table(
                "the slowest to judge",
                "seconds",
                "verdict",
                "problem",
                "submission",
                rows=[
                    [f"{e.seconds:.1f}", str(e.verdict), short(e.problem), e.submission]
                    for e in slow
                ],
            )
        )
    if left:
        numbers = set()
        console.print(
            table(
                "not judged",
                "submission",
                "problem",
                "reason",
                rows=[[n.submission, short(n.problem or "-"), n.reason] for n in result.not_judged],
            )
        )
    console.print(f"every result is in {result.log}", markup=False, soft_wrap=True)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())
