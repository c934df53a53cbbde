"""The static check: a submission is read, and never run."""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

from kernelbench_dist.harness._results import Finding, StaticResult
from kernelbench_dist.harness._submission import Submission, read_submission
from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.harness.static import (
    _c_source,
    _inputs,
    _judge,
    _patches,
    _state,
    _streams,
    _torch_use,
)
from kernelbench_dist.harness.static._code import FILE, Code
from kernelbench_dist.harness.static._nodes import Found, is_main_guard
from kernelbench_dist.harness.static._rules import RULES

_CHECKS: tuple[Callable[[Code], Iterator[Found]], ...] = (
    _patches.patches,
    _patches.subclasses,
    _judge.judge,
    _judge.modules,
    _judge.files,
    _judge.memory,
    _judge.code_from_text,
    _judge.output,
    _streams.streams,
    _state.caches,
    _state.memoized,
    _state.counters,
    _state.clocks,
    _state.seeds,
    _inputs.changed,
    _inputs.ignored,
    _torch_use.torch_work,
    _torch_use.fallbacks,
    _torch_use.precision,
    _torch_use.reference,
    _c_source.sources,
)
_MOST_ROUNDS = 3  # exec in the text of an exec in ...


def static_check(
    source: str | os.PathLike[str] | Submission, problem: str | os.PathLike[str] | None = None
) -> StaticResult:
    """Read a submission and report what no honest kernel does, without running any of it.

    The file's syntax tree is read, so comments, docstrings and the names of variables trip no
    rule. Names are followed through imports, assignments, getattr, exec and constant expressions.
    An "error" among the findings makes the verdict CHEATING; warnings leave it PASSED. What a rule
    cannot see (wrong values, hard-coded shapes) is left to running it.

    Args:
        source: a path or source text, as `read_submission` takes it, or what that returned.
        problem: recorded in the result; the rules need none.

    Raises:
        TypeError, ValueError, FileNotFoundError: as `read_submission`.

    >>> result = static_check('''
    ... import time, torch
    ... time.perf_counter = lambda: 0.0
    ... class ModelNew(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x + 1
    ... ''')
    >>> result.verdict.value, result.findings[0].rule, result.findings[0].line
    ('CHEATING', 'patches-timer', 3)
    """
    started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    start = time.perf_counter()
    submission = source if isinstance(source, Submission) else read_submission(source)
    findings: tuple[Finding, ...] = ()
    if submission.tree is None:
        verdict, reason = Verdict.COMPILE_ERROR, _syntax(submission)
    else:
        findings, has_model = _findings(submission, submission.tree)
        verdict, reason = _judge_findings(submission, findings, has_model)
    return StaticResult(
        verdict=verdict,
        reason=reason,
        submission=submission.source(),
        problem=None if problem is None else os.fspath(problem),
        started_at=started_at,
        seconds=time.perf_counter() - start,
        findings=findings,
    )


def _syntax(submission: Submission) -> str:
    error = submission.syntax_error
    line = (error.lineno if error else None) or 1
    return f"{submission.name}:{line}: {error.msg if error else 'it does not parse'}"


def _judge_findings(
    submission: Submission, findings: tuple[Finding, ...], has_model: bool
) -> tuple[Verdict, str]:
    for finding in findings:
        if finding.severity == "error":
            return Verdict.CHEATING, f"{submission.name}:{finding.line}: {finding.message}"
    if not has_model:
        return Verdict.RUNTIME_ERROR, f"{submission.name} defines no class ModelNew(nn.Module)"
    count = len(findings)
    if count:
        return Verdict.PASSED, f"{count} warning{'s' if count > 1 else ''} and no error"
    return Verdict.PASSED, "no finding"


def _findings(submission: Submission, tree: ast.Module) -> tuple[tuple[Finding, ...], bool]:
    found: list[Found] = []
    has_model = True
    deep = Found("too-deep", 1, 1, "nests names or expressions too deeply")
    try:
        code = _expanded(tree, submission.kind)
        has_model = _has_model(code)
    except RecursionError:
        found.append(deep)
    else:
        for check in _CHECKS:
            try:
                found += check(code)
            except RecursionError:
                found.append(deep)
        if code.is_too_deep:
            found.append(deep)
        if has_model and code.forward is None and not (code.model and code.outer_bases(code.model)):
            found.append(Found("unread-model", 1, 1, "the forward of ModelNew was not found"))
    lines = submission.text.splitlines()
    unique = {(f.line, f.rule, f.what): f for f in found}
    order = sorted(unique.values(), key=lambda f: (f.line, f.column, f.rule, f.what))
    return tuple(_finding(f, lines) for f in order), has_model


def _finding(found: Found, lines: list[str]) -> Finding:
    severity, advice = RULES[found.rule]
    return Finding.model_validate(
        {
            "rule": found.rule,
            "severity": found.severity or severity,
            "line": found.line,
            "column": found.column,
            "message": f"{found.what}; {advice}",
            "code": lines[found.line - 1].strip() if 0 < found.line <= len(lines) else "",
        }
    )


def _expanded(tree: ast.Module, kind: str) -> Code:
    """The file with the text of its exec calls written out, where that text is constant."""
    # It is imported, so that what it does as a program is not done, unless it changes its name.
    if not any(_names_itself(node) for node in ast.walk(tree)):
        body = [node for node in tree.body if not is_main_guard(node)]
        tree = ast.Module(body, tree.type_ignores)
    code = Code(tree, kind)
    done: set[str] = set()
    for _ in range(_MOST_ROUNDS):
        added: list[ast.stmt] = []
        for call in code.calls:
            names = code.resolve(call.func) & {"builtins.exec", "builtins.eval", "builtins.compile"}
            text = code.fold(call.args[0]) if names and call.args else None
            inner = _judge.parsed(text) if isinstance(text, (str, bytes)) else None
            if inner is None or str(text) in done:
                continue
            done.add(str(text))
            for node in ast.walk(inner):
                if hasattr(node, "lineno"):
                    ast.copy_location(node, call)
            added += inner.body
        if not added:
            break
        tree = ast.Module([*tree.body, *added], tree.type_ignores)
        code = Code(tree, kind)
    return code


def _names_itself(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id == "__name__" and not isinstance(node.ctx, ast.Load)
    return isinstance(node, ast.Constant) and "__name__" in str(node.value)


def _has_model(code: Code) -> bool:
    if code.model is None:
        # ModelNew = make(...), or an import of it: only running it can say.
        return "ModelNew" in code.scopes.module.names and not any(
            b.dotted and b.dotted.startswith(FILE) for b in code.scopes.module.names["ModelNew"]
        )
    known = code.outer_bases(code.model)
    is_unknown = any(not code.resolve(b) for c in code.bases(code.model) for b in c.bases)
    return is_unknown or any(not n.startswith("builtins.") for n in known)
