"""What the static check found."""

from __future__ import annotations

from collections.abc import Iterator

from kernelbench_dist.harness._results import Finding, StaticResult
from kernelbench_dist.report._figures import counted, one_line
from kernelbench_dist.report._layout import paragraph

_ORDER = {"error": 0, "warning": 1, "note": 2}


def findings(result: StaticResult, *, most: int = 15) -> Iterator[str]:
    """How many there are, then the errors, then the others, each with its line of source."""
    counts = [
        counted(n, severity)
        for severity in _ORDER
        if (n := sum(f.severity == severity for f in result.findings))
    ]
    yield from paragraph("static", ", ".join(counts) or "no findings")
    ordered = sorted(result.findings, key=lambda f: _ORDER[f.severity])
    for finding in ordered[:most]:
        yield from _finding(finding)
    if len(ordered) > most:
        yield f"  ... and {counted(len(ordered) - most, 'more finding', 'more findings')}"


def _finding(f: Finding) -> Iterator[str]:
    place = f"line {f.line}" if f.line else "the file"
    yield f"  {place}: {f.severity}: {f.rule}: {one_line(f.message)}"
    if f.code.strip():
        yield f"  | {one_line(f.code, 160)}"
