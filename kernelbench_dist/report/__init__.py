"""Results of the judge, for people and for models: `text`, and `Report` for a page.

The text's first line holds the verdict and what was judged; then come the reason, what to do about
it, and what matters of each tool. What comes from a submission is quoted: behind a bar, or on one
line, without control characters.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelbench_dist.harness._compare_submissions import ComparisonResult
from kernelbench_dist.harness._fuzz_cases import FuzzResult
from kernelbench_dist.harness._results import (
    CompileResult,
    CorrectnessResult,
    ProblemResult,
    Result,
    StaticResult,
    SubmitResult,
)
from kernelbench_dist.harness.profile._results import (
    DisassembleResult,
    GpuSpecs,
    ProfileResult,
    SanitizeResult,
)
from kernelbench_dist.report._builds import builds, has_errors
from kernelbench_dist.report._comparison import compared
from kernelbench_dist.report._document import Report, write_sweep
from kernelbench_dist.report._figures import printable
from kernelbench_dist.report._fuzz import fuzzed
from kernelbench_dist.report._generic import fields, trivial_answers
from kernelbench_dist.report._head import head, notes
from kernelbench_dist.report._machine import disassembled, sanitized, specified
from kernelbench_dist.report._profile import profiled
from kernelbench_dist.report._static import findings
from kernelbench_dist.report._submit import measured
from kernelbench_dist.report._trials import trials

__all__ = ["Report", "printable", "text", "write_sweep"]


def text(result: Result) -> str:
    """A report in plain text, at most 100 columns wide but for commands and quotations.

    >>> from kernelbench_dist.harness import StaticResult
    >>> now = "2026-01-01T00:00:00+00:00"
    >>> print(text(StaticResult(verdict="PASSED", reason="", started_at=now, seconds=0.25)))
    PASSED: nothing (static_check)
    judged    0.250 s in all, 2026-01-01T00:00:00+00:00
    static    no findings
    """
    return "\n".join((*_lines(result), *notes(result)))


def _lines(result: Result) -> Iterator[str]:
    known = getattr(result, "builds", ())
    # The compiler's log would say again what its messages say by file and line.
    yield from head(result, detail=not has_errors(known))
    if isinstance(result, StaticResult):
        yield from findings(result)
    elif isinstance(result, CompileResult):
        yield from builds(result.builds)
    elif isinstance(result, CorrectnessResult):
        yield from builds(result.builds, most_diagnostics=6, most_kernels=0)
        yield from trials(result.trials, result.replay, brief=False)
    elif isinstance(result, SubmitResult):
        if result.static is not None:
            yield from findings(result.static, most=4 if result.passed else 8)
        yield from builds(result.builds, most_diagnostics=4, most_kernels=6)
        yield from trials(result.trials, result.replay, brief=True)
        yield from measured(result)
    elif isinstance(result, ProfileResult):
        yield from profiled(result)
    elif isinstance(result, SanitizeResult):
        yield from sanitized(result)
    elif isinstance(result, DisassembleResult):
        yield from disassembled(result)
    elif isinstance(result, GpuSpecs):
        yield from specified(result)
    elif isinstance(result, FuzzResult):
        yield from builds(result.builds, most_diagnostics=6, most_kernels=0)
        yield from fuzzed(result)
    elif isinstance(result, ComparisonResult):
        yield from compared(result)
    elif isinstance(result, ProblemResult):
        yield from trivial_answers(result)
    else:
        yield from fields(result)
