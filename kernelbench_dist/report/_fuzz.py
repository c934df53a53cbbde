"""What fuzzing found: the smallest case that is wrong, and how to see it again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from kernelbench_dist.harness._fuzz_cases import FuzzResult, ReplayResult
from kernelbench_dist.report._figures import counted, one_line, printable
from kernelbench_dist.report._layout import paragraph, unbroken
from kernelbench_dist.report._trials import trials


def fuzzed(result: FuzzResult) -> Iterator[str]:
    """Cases tried, the smallest that fails with its worst element, and a program that shows it.

    Of a replay, which searches nothing, the case and its worst element.
    """
    if not isinstance(result, ReplayResult):
        yield from _search(result)
    if result.case is not None:
        words = result.case.words(tuple(result.case.sizes))
        yield from paragraph("case", f"{words}, seed {result.case.seed}")
    if result.shrunk is not None:
        simpler = "no simpler case fails that differs from it in one thing"
        yield from paragraph("", simpler if result.shrunk else "the time was up: simpler may fail")
    if result.reproduced is False:
        yield from paragraph("", "in a fresh process it passes")
    if result.trial is not None:
        yield from trials([result.trial], None, brief=False)
    if result.stored:
        yield from unbroken("stored", one_line(result.stored, 4000))
    if result.replay:
        yield from unbroken("replay", one_line(result.replay, 4000))
    if result.snippet:
        yield from _program(result.snippet, result.stored)


def _search(result: FuzzResult) -> Iterator[str]:
    tried = (
        f"{counted(result.cases, 'case')} judged, {', '.join(result.varied) or 'no size'} varied"
    )
    if result.skipped:
        tried += f"; {result.skipped} skipped, which the reference does not take or answer well"
    yield from paragraph("cases", tried)


def _program(snippet: str, stored: str | None) -> Iterator[str]:
    """The command for the file beside the one that is stored; without that, the text."""
    if stored:
        path = str(Path(stored).with_suffix(".py"))
        yield from unbroken("program", one_line(f"python {shlex.quote(path)}", 4000))
        return
    yield from paragraph("program", "shows both answers, with torch and the two files alone:")
    yield ""
    yield from (printable(line) for line in snippet.splitlines())
    yield ""
