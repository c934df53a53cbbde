"""What every report begins with: the verdict, why, what to do, and what was judged how."""

from __future__ import annotations

from collections.abc import Iterator

from kernelbench_dist.harness._results import Options, Result
from kernelbench_dist.report._figures import counted, figure, one_line, sizes
from kernelbench_dist.report._layout import paragraph, quoted

_MOST_DETAIL_LINES = 12
_MOST_NOTES = 8


def head(result: Result, *, detail: bool = True) -> Iterator[str]:
    """detail: whether the traceback or output that belongs to the reason is of use here."""
    what = one_line(result.submission.name) if result.submission else None
    subject = " for ".join(part for part in (what, result.problem) if part) or "nothing"
    yield f"{result.verdict}: {subject} ({result.tool})"
    if result.reason:
        yield from paragraph("reason", one_line(result.reason, 1000))
    if not result.passed:
        yield from paragraph("meaning", result.verdict.sentence)
        yield from paragraph("to do", result.advice)
    if detail and result.detail:
        yield from quoted(result.detail, _MOST_DETAIL_LINES)
    yield from paragraph("judged", _judged(result))


def notes(result: Result) -> Iterator[str]:
    """The notes, after all else."""
    for note in result.notes[:_MOST_NOTES]:
        yield from paragraph("note", one_line(note))
    if len(result.notes) > _MOST_NOTES:
        yield from paragraph("note", f"and {len(result.notes) - _MOST_NOTES} more")


def _judged(result: Result) -> str:
    parts = []
    if source := result.submission:
        declared = "declared" if source.kind_is_declared else "not declared"
        parts.append(f"kind {source.kind} ({declared}), sha256 {source.sha256[:12]}")
    options = getattr(result, "options", None)
    if isinstance(options, Options):
        parts += _options(options)
    parts += [figure(result.seconds, "s in all"), result.started_at]
    return ", ".join(part for part in parts if part)


def _options(options: Options) -> Iterator[str]:
    yield f"on {options.device}"
    yield options.dtype or "dtypes of the problem"
    yield f"sizes: {' and '.join(sizes(s) for s in options.sizes[:6]) or sizes(None)}"
    if len(options.sizes) > 6:
        yield f"{len(options.sizes) - 6} more sizes"
    yield counted(options.trials, "trial") + " each"
    yield f"seed {options.seed}"
    yield "forward and backward" if options.backward else "forward only"
    if options.world_size > 1:
        kind = "virtual ranks" if options.on_virtual_ranks else "ranks on gloo"
        yield f"{options.world_size} {kind}"
