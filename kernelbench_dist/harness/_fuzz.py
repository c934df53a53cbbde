"""fuzz: look for the smallest case at which a submission is wrong."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from kernelbench_dist.harness import _audit
from kernelbench_dist.harness._draws import VALUES
from kernelbench_dist.harness._fuzz_cases import FuzzResult
from kernelbench_dist.harness._fuzz_judge import CaseJudge, make_plan
from kernelbench_dist.harness._fuzz_search import Search
from kernelbench_dist.harness._fuzz_store import keep
from kernelbench_dist.harness._judge import (
    Head,
    check_syntax,
    make_limits,
    make_options,
    open_problem,
)
from kernelbench_dist.harness._memory import LAYOUTS
from kernelbench_dist.harness._problem import derived
from kernelbench_dist.harness._ranks import RanksKind
from kernelbench_dist.harness._session import Progress, Session, silent
from kernelbench_dist.harness._side import JudgedError
from kernelbench_dist.harness._submission import read_submission
from kernelbench_dist.harness._verdicts import Verdict

_LOAD_S, _BUILD_S = 60.0, 600.0


def fuzz(
    source: str | Path,
    problem: str | Path,
    *,
    examples: int = 200,
    time_limit_s: float = 60.0,
    seed: int | None = None,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    backward: bool | None = None,
    ranks: RanksKind = "virtual",
    timeout_s: float = 10.0,
    values: Sequence[str] | None = None,
    layouts: Sequence[str] | None = None,
    least_size: int = 0,
    store: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> FuzzResult:
    """Draw sizes, values and memory layouts, and shrink what fails to the smallest case.

    Sizes are those that the problem's VARIES names, and where ModelNew takes arguments those that
    Model takes as arguments too. Parameters that would all start as 0 or 1 get other values, so
    that it shows where one is not used. Cases that the reference does not take are skipped, as are
    those at which it is itself far from the exact answer, as with values that overflow.

    Args:
        source, problem, device, dtype, backward, ranks: as for `run_correctness`.
        examples: cases to draw; those of shrinking come on top.
        time_limit_s: for all cases together, without what is built. The case that is under way is
            finished, and the smallest case is run once more in a fresh process.
        seed: of the search: the same seed finds the same case, where the time suffices.
        timeout_s: for one step of the submission.
        values: some of "normal", "zeros", "ties", "large", "tiny", "inf", "nan" and "limits" (of
            integers); by default all.
        layouts: some of "contiguous", "transposed", "strided" and "offset"; by default all.
        least_size: that a size may have, 0 to 64: 1 leaves empty tensors out.
        store: the folder for failures; by default failures/ in $KERNELBENCH_DIST_STATE, or
            kernelbench_dist/failures in $XDG_STATE_HOME or ~/.local/state.
        progress: called with what is being done.

    Returns:
        Of a failure, its `reason` names the smallest sizes in one line, `snippet` is a program that
        shows it, and `stored` is the file that `replay` takes.

    Raises:
        FileNotFoundError, ProblemError: no such file or problem.
        ValueError: an argument's value, named.
    """
    if type(examples) is not int or examples < 1:
        raise ValueError(f"examples is {examples!r}; an int of 1 or more is accepted")
    if not 0 < time_limit_s < 1e6:
        raise ValueError(f"time_limit_s is {time_limit_s!r}; a positive number is accepted")
    if type(least_size) is not int or not 0 <= least_size <= 64:
        raise ValueError(f"least_size is {least_size!r}; an int from 0 to 64 is accepted")
    for kind, given, known in (("values", values, VALUES), ("layouts", layouts, LAYOUTS)):
        if unknown := [name for name in given or () if name not in known]:
            raise ValueError(f"{kind} hold {unknown[0]!r}; {', '.join(known)} are accepted")
    options = make_options(
        problem, dtype=dtype, seed=seed, device=device, backward=backward, ranks=ranks, trials=1
    )
    make_limits(timeout_s, _BUILD_S, None)
    limits = make_limits(max(_LOAD_S, timeout_s), _BUILD_S, None)
    submission = read_submission(source)
    head, tell = Head(submission, problem), progress or silent
    found: dict[str, Any] = {}
    session = Session(problem, options, limits, submission, progress=tell)
    with head.judging(), session:
        _check_hypothesis()
        check_syntax(submission)
        open_problem(session, backward)
        tell("checking the problem")
        _audit.audit(session, derived(options.seed, "problem"), {})
        judge = CaseJudge(session, timeout_s)
        judge.open()
        plan = make_plan(judge, values, layouts, least_size)
        search = Search(judge, plan, time_limit_s, tell)
        search.run(examples, options.seed)
        found = search.found()
        head.verdict, head.reason = found.pop("verdict"), found.pop("reason")
        head.detail = found.pop("detail")
    result = FuzzResult(
        **head.fields(),
        options=session.options,
        builds=tuple(session.builds),
        notes=tuple(session.notes),
        **found,
    )
    return result if result.case is None else keep(result, session, timeout_s, store)


def _check_hypothesis() -> None:
    if importlib.util.find_spec("hypothesis") is None:
        raise JudgedError(
            Verdict.ENVIRONMENT_ERROR,
            "fuzzing needs hypothesis, which is missing: pip install 'kernelbench-dist[test]'",
        )
