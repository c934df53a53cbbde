"""A report on disk: what a judgement, a trail, a comparison or a sweep has found, as one page."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kernelbench_dist import problems
from kernelbench_dist.harness._compare_submissions import ComparisonResult
from kernelbench_dist.harness._fuzz_cases import FuzzResult, ReplayResult
from kernelbench_dist.harness._results import (
    CompileResult,
    CorrectnessResult,
    ProblemResult,
    Result,
    StaticResult,
    SubmitResult,
)
from kernelbench_dist.harness._submission import read_submission
from kernelbench_dist.harness._trail import SCHEMA as TRAIL
from kernelbench_dist.harness._trail import Entry, Trail
from kernelbench_dist.harness.sweep._result import SCHEMA as SWEEP
from kernelbench_dist.report._sweep import Row, read_sweep

SCHEMA = "kernelbench_dist.report/1"

RESULTS: dict[str, type[Result]] = {
    kind.tool: kind
    for kind in (
        CompileResult,
        CorrectnessResult,
        FuzzResult,
        ProblemResult,
        ReplayResult,
        StaticResult,
        SubmitResult,
    )
}
_PLAIN = {"profile_kernel": "profile", "get_gpu_specs": "specs"}
PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Report:
    """Whatever is known of a submission, or of several: each part may be missing.

    `profile` is what `profile_kernel` has found, and `specs` what `get_gpu_specs` has, as plain
    values. `source` is the submission's
    text, `reference` that of the problem's file.

    >>> report = Report(title="my kernel")
    >>> Report.from_dict(report.to_dict()) == report
    True
    """

    title: str
    made_at: str = ""
    result: Result | None = None
    profile: Mapping[str, Any] | None = None
    specs: Mapping[str, Any] | None = None
    comparison: ComparisonResult | None = None
    trail: tuple[Entry, ...] = ()
    sweep: tuple[Row, ...] = ()
    source: str | None = None
    reference: str | None = None

    @classmethod
    def of(cls, *, title: str | None = None, **parts: Any) -> Report:
        """A report of what is at hand, by the names of its fields.

        title: by default the submission and the problem. `source` is by default the file that the
        result names, if it still holds what was judged, and `reference` the problem of the suite.
        `profile` and `specs` may be results, too.

        >>> from kernelbench_dist.harness import static_check
        >>> checked = static_check("class ModelNew: pass\\n")
        >>> Report.of(result=checked).title
        '<source>'
        """
        for name in _PLAIN.values():
            if isinstance(found := parts.get(name), Result):
                parts[name] = found.to_dict()
        report = cls(title=title or "", **parts)
        report = replace(
            report,
            made_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            source=report.source or _submission(report.result),
            reference=report.reference or _problem(report),
        )
        return replace(report, title=report.title or _title(report))

    @classmethod
    def read(
        cls,
        *paths: PathLike,
        title: str | None = None,
        source: PathLike | None = None,
        reference: PathLike | None = None,
    ) -> Report:
        """A report of stored files, in any order: each is a part of it.

        Args:
            paths: a result that a tool has printed with --json, a comparison, a profile, a GPU's
                specs, a trail, the log of a sweep, or a report as JSON; one of each at most.
            title: by default the submission and the problem.
            source, reference: files of the submission and the problem; by default as for `of`.

        Raises:
            FileNotFoundError: no such file.
            ValueError: a file is none of these, or two are the same part.
        """
        if not paths:
            raise ValueError("no file is given; one or more stored results are accepted")
        parts: dict[str, Any] = {}
        for path in paths:
            found = _parts(Path(path))
            if twice := sorted(parts.keys() & found):
                raise ValueError(f"{os.fspath(path)} is a second {twice[0]}; one is accepted")
            parts |= found
        for name, file in (("source", source), ("reference", reference)):
            if file is not None:
                parts[name] = _read(file)
        return cls.of(**{**parts, "title": title or parts.get("title")})

    def to_html(self) -> str:
        """One HTML document that needs nothing beside it."""
        from kernelbench_dist.report._page import page

        return page(self)

    def to_markdown(self) -> str:
        from kernelbench_dist.report._markdown import markdown

        return markdown(self)

    def to_json(self, indent: int | None = None) -> str:
        """JSON text; what is missing is null."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the schema's version under "schema"."""
        return {
            "schema": SCHEMA,
            "title": self.title,
            "made_at": self.made_at,
            "result": self.result and self.result.to_dict(),
            "profile": self.profile and dict(self.profile),
            "specs": self.specs and dict(self.specs),
            "comparison": self.comparison and self.comparison.to_dict(),
            "trail": [entry.model_dump(mode="json") for entry in self.trail],
            "sweep": [row.model_dump(mode="json") for row in self.sweep],
            "source": self.source,
            "reference": self.reference,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """The inverse of `to_dict`. ValueError where the schema is another one."""
        fields = dict(data)
        if (schema := fields.pop("schema", None)) != SCHEMA:
            raise ValueError(f"schema is {schema!r}, and {SCHEMA!r} is accepted")
        result, comparison = fields.get("result"), fields.get("comparison")
        fields["result"] = result and _result(result)
        fields["comparison"] = comparison and ComparisonResult.from_dict(comparison)
        fields["trail"] = tuple(map(Entry.model_validate, fields.get("trail") or ()))
        fields["sweep"] = tuple(map(Row.model_validate, fields.get("sweep") or ()))
        return cls(**fields)

    def write(self, path: PathLike) -> None:
        """To a file whose name ends in .html, .md or .json. ValueError where it ends otherwise."""
        make = {".html": self.to_html, ".md": self.to_markdown, ".json": self.to_json}
        suffix = Path(path).suffix.lower()
        if suffix not in make:
            raise ValueError(f"{os.fspath(path)!r} ends in {suffix!r}; {', '.join(make)} accepted")
        Path(path).write_text(make[suffix](), encoding="utf-8", errors="backslashreplace")


def write_sweep(log: PathLike, folder: PathLike, *, title: str | None = None) -> int:
    """The index of a sweep as index.html in a folder, and a page for each verdict beside it.

    Returns how many verdicts there are. Raises FileNotFoundError and LogError as
    `harness.sweep.results` does.
    """
    from kernelbench_dist.harness.sweep import results

    target = Path(folder)
    rows = []
    for entry, result in results(log):
        (target / "verdicts").mkdir(parents=True, exist_ok=True)
        page = f"verdicts/{entry.key[:16]}.html"
        Report.of(result=result).write(target / page)
        row = Row.of(entry.submission, entry.problem, result)
        rows.append(row.model_copy(update={"page": page}))
    target.mkdir(parents=True, exist_ok=True)
    Report.of(sweep=tuple(rows), title=title).write(target / "index.html")
    return len(rows)


def _parts(path: Path) -> dict[str, Any]:
    """What a file holds, as fields of a report."""
    text = _read(path)
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        return _lines(path, text)
    schema, tool = data.get("schema"), data.get("tool")
    if schema == SCHEMA:
        held = Report.from_dict(data)
        return {k: v for k, v in vars(held).items() if v and k != "made_at"}
    if tool == ComparisonResult.tool:
        return {"comparison": ComparisonResult.from_dict(data)}
    if tool in RESULTS:
        return {"result": _result(data)}
    if tool in _PLAIN:
        return {_PLAIN[tool]: data}
    return _lines(path, text)  # a trail of one line, say


def _lines(path: Path, text: str) -> dict[str, Any]:
    try:
        first = json.loads(text.split("\n", 1)[0])
        schema = first.get("schema") if isinstance(first, dict) else None
    except ValueError:
        schema = None
    if schema == TRAIL:
        return {"trail": tuple(Trail(path).read())}
    if schema == SWEEP:
        return {"sweep": read_sweep(path)}
    raise ValueError(
        f"{path} is nothing that a report is made of; accepted: what a tool prints with --json, a "
        "trail, the log of a sweep, a report as JSON"
    )


def _result(data: dict[str, Any]) -> Result:
    tool = data.get("tool")
    if tool not in RESULTS:
        raise ValueError(f"tool is {tool!r}; {', '.join(RESULTS)} are accepted")
    return RESULTS[tool].from_dict(data)


def _read(path: PathLike) -> str:
    if Path(path).is_dir():
        raise ValueError(f"{os.fspath(path)} is a folder; a file is accepted")
    if not Path(path).exists():
        raise FileNotFoundError(f"no file {os.fspath(path)}")
    return Path(path).read_text(encoding="utf-8", errors="replace")


def _submission(result: Result | None) -> str | None:
    """The text of the file that was judged, where it is still there and the same."""
    if result is None or result.submission is None:
        return None
    try:
        found = read_submission(Path(result.submission.name))
    except (OSError, ValueError):
        return None
    return found.text if found.sha256 == result.submission.sha256 else None


def _problem(report: Report) -> str | None:
    """The text of the suite's problem of that name; nothing of a file that somebody names."""
    name = _problem_name(report)
    if name is None or name.split("@")[0] not in problems.list_problems():
        return None
    return problems.find(name)[1].read_text(encoding="utf-8")


def _problem_name(report: Report) -> str | None:
    if report.result is not None:
        return report.result.problem
    return report.comparison.problem if report.comparison is not None else None


def _title(report: Report) -> str:
    problem = _problem_name(report)
    if report.result is not None:
        name = report.result.submission.name if report.result.submission else report.result.tool
        return f"{Path(name).name} for {problem}" if problem else Path(name).name
    if report.comparison is not None:
        return f"{len(report.comparison.entrants)} submissions for {problem}"
    if report.sweep:
        return f"Sweep of {len(report.sweep)} submissions"
    if report.trail:
        named = sorted({e.problem for e in report.trail if e.problem})
        return f"{len(report.trail)} calls on {named[0] if len(named) == 1 else 'several problems'}"
    return "Report"
