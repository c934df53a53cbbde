"""The report as one HTML document: style, script and pictures are in it, and it loads nothing."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from pygments import lex
from pygments.lexers import PythonLexer
from pygments.token import Token

from kernelbench_dist._version import __version__
from kernelbench_dist.report._cards import cards
from kernelbench_dist.report._figures import figure, one_line, printable, printable_lines, sizes
from kernelbench_dist.report._parts import Code, Note, Quote, Table
from kernelbench_dist.report._plots import Picture
from kernelbench_dist.report._sections import sections
from kernelbench_dist.report._trail_view import best_of

if TYPE_CHECKING:
    from kernelbench_dist.report._document import Report

_KINDS: dict[type[Any], str] = {
    Picture: "picture",
    Table: "table",
    Note: "note",
    Quote: "quote",
    Code: "code",
}
_MOST_LINES, _WIDEST = 4000, 1000
# Token types that the style sheet has colours for; a type belongs to the first that holds it.
_TOKENS = (
    (Token.Comment, "tc"),
    (Token.Literal.String.Doc, "tc"),
    (Token.Literal.String, "ts"),
    (Token.Literal.Number, "tn"),
    (Token.Keyword, "tk"),
    (Token.Operator.Word, "tk"),
    (Token.Name.Function, "tf"),
    (Token.Name.Class, "tf"),
    (Token.Name.Decorator, "tf"),
    (Token.Name.Builtin, "tb"),
)


def page(report: Report) -> str:
    """The document. What comes from a submission is escaped, and no script but ours may run."""
    script, style = _file("script.js"), _file("style.css")
    verdict, tone, subtitle = banner(report)
    rendered = (
        _environment()
        .get_template("page.html")
        .render(
            title=one_line(report.title, 200),
            verdict=verdict,
            tone=tone,
            subtitle=subtitle,
            facts=facts(report),
            cards=cards(report.result, report.profile),
            sections=sections(report),
            style=Markup(style),
            script=Markup(script),
            # Should something slip through that looks like markup, the browser does not run it.
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            version=__version__,
            made_at=report.made_at,
        )
    )
    return rendered.lstrip()  # the lines of the macros


def banner(report: Report) -> tuple[str, str, str]:
    """The verdict, its tone, and the sentence that goes with it."""
    result = report.result or report.comparison
    if result is not None:
        return str(result.verdict), "good" if result.passed else "bad", one_line(result.reason, 600)
    if report.sweep:
        passed = sum(row.verdict == "PASSED" for row in report.sweep)
        return f"{passed} of {len(report.sweep)} passed", "plain", ""
    if report.trail:
        best = best_of(report.trail)
        if best is None:
            return "no best", "plain", "no call of the trail passed with a time"
        e = report.trail[best]
        return f"best: {figure(e.time_us, 'us')}", "plain", f"call {best + 1}, {one_line(e.tool)}"
    return "profile" if report.profile else "empty", "plain", ""


def facts(report: Report) -> list[str]:
    """What is to be known at a glance: device, dtype, sizes, when."""
    result = report.result or report.comparison
    if result is None:
        return []
    found = []
    timing, options = getattr(result, "timing", None), getattr(result, "options", None)
    if timing is not None:
        found.append(timing.environment.device_name)
    elif options is not None:
        found.append(options.device)
    if options is not None:
        found.append(options.dtype or "dtypes of the problem")
        at = getattr(result, "timing_sizes", None)
        own = sizes(at) if at else f"{sizes(at)} sizes"
        found.append(f"timed at {own}" if timing is not None else "not timed")
    return [one_line(fact, 120) for fact in (*found, result.started_at)]


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("kernelbench_dist.report", "html"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"kind": lambda part: _KINDS[type(part)], "lines": _lines}
    return made


def _shown(value: Any) -> Any:
    """What is not ours holds no control characters when it gets to a page."""
    plain = isinstance(value, str) and not isinstance(value, Markup)
    return printable_lines(value) if plain else value


def _file(name: str) -> str:
    return (resources.files("kernelbench_dist.report") / "html" / name).read_text(encoding="utf-8")


def _lines(text: str) -> list[list[tuple[str, str]]]:
    """The lines of a Python file as pieces with the class of each, "" where it has none."""
    lines = [line if len(line) <= _WIDEST else f"{line[:_WIDEST]} ..." for line in text.split("\n")]
    shown = "\n".join(lines[:_MOST_LINES]).expandtabs(4)
    found: list[list[tuple[str, str]]] = [[]]
    for token, value in lex(shown, PythonLexer(stripnl=False, ensurenl=False)):
        kind = next((name for of, name in _TOKENS if token in of), "")
        for i, piece in enumerate(value.split("\n")):
            if i:
                found.append([])
            if piece:
                found[-1].append((kind, printable(piece)))
    while found and not found[-1]:
        found.pop()
    if len(lines) > _MOST_LINES:
        found.append([("", f"... {len(lines) - _MOST_LINES} more lines")])
    return found
