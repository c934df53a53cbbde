"""Trials of correctness: what was drawn, the worst element, and the command for a failed one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelbench_dist.harness._results import Trial
from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.report._figures import (
    NOT_MEASURED,
    figure,
    number,
    one_line,
    shape,
    sizes,
    value_of,
)
from kernelbench_dist.report._layout import paragraph, table, unbroken

_MOST_ROWS = 10
_MOST_SHAPES = 4


def trials(all_trials: Sequence[Trial], replay: str | None, *, brief: bool) -> Iterator[str]:
    """brief: no table where all trials passed."""
    if all_trials:
        yield from paragraph("trials", _summary(all_trials))
        if not brief or _failed(all_trials):
            yield from table(_COLUMNS, _rows(all_trials))
        yield from _worst(all_trials)
    if replay:
        yield from unbroken("replay", one_line(replay, 4000))


def _failed(all_trials: Sequence[Trial]) -> bool:
    return any(t.verdict is not Verdict.PASSED for t in all_trials)


def _summary(all_trials: Sequence[Trial]) -> str:
    passed = sum(t.verdict is Verdict.PASSED for t in all_trials)
    compared = [t.bitwise_equal for t in all_trials if t.bitwise_equal is not None]
    bits = f"the same in {sum(compared)} of {len(compared)}" if compared else NOT_MEASURED
    return f"{passed} of {len(all_trials)} passed; bits of two runs on the same inputs: {bits}"


_COLUMNS = ("trial", "seed", "sizes", "inputs", "verdict", "bits", "error/bound")


def _rows(all_trials: Sequence[Trial]) -> Iterator[list[str]]:
    numbered = list(enumerate(all_trials, 1))
    if len(numbered) > _MOST_ROWS:  # the last is the one that failed, if any did
        numbered = [*numbered[: _MOST_ROWS - 1], numbered[-1]]
    before = 0
    for i, trial in numbered:
        if i != before + 1:
            yield ["...", "", "", "", f"({i - before - 1} not shown)", "", ""]
        before = i
        shapes = [shape(s) for s in trial.shapes[:_MOST_SHAPES]]
        shapes += ["..."] if len(trial.shapes) > _MOST_SHAPES else []
        shares = [s for o in trial.outputs if (s := o.share_of_bound) is not None]
        yield [
            str(i),
            str(trial.seed),
            sizes(trial.sizes) if trial.sizes else "own",
            " ".join(shapes),
            str(trial.verdict),
            {True: "same", False: "differ", None: NOT_MEASURED}[trial.bitwise_equal],
            figure(max(shares)) if shares else NOT_MEASURED,
        ]


def _worst(all_trials: Sequence[Trial]) -> Iterator[str]:
    """The worst element of the trial that failed, or else of all."""
    failed = [(i, t) for i, t in enumerate(all_trials, 1) if t.verdict is not Verdict.PASSED]
    judged = failed[:1] or list(enumerate(all_trials, 1))
    found = [
        (share, i, output)
        for i, trial in judged
        for output in trial.outputs
        if (share := output.share_of_bound) is not None and output.worst_index is not None
    ]
    if not found:
        return
    share, i, o = max(found, key=lambda item: item[0])
    rank = f" on rank {o.rank}" if o.rank else ""
    ulp = number(o.worst_ulp)
    yield from paragraph(
        "worst",
        f"trial {i}, {o.name}{list(o.worst_index or ())}{rank} of shape {shape(o.shape)}, "
        f"{o.dtype}: result {value_of(o.worst_result)}, expected {value_of(o.worst_expected)}, "
        f"error {figure(number(o.worst_error))} = {figure(ulp, 'ulp')}, "
        f"bound {figure(number(o.worst_bound))} ({figure(share)} of it)",
    )
    wrong = NOT_MEASURED if o.mismatches is None else str(o.mismatches)
    yield from paragraph(
        "",
        f"wrong elements: {wrong} of {o.elements}; max abs error {figure(o.max_abs_error)}, "
        f"mean abs error {figure(o.mean_abs_error)}, max rel error {figure(o.max_rel_error)}",
    )
