"""Failures of fuzzing as files, and replay: one of them run again."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any, Literal

from kernelbench_dist import problems
from kernelbench_dist.harness._fuzz_cases import FuzzCase, FuzzResult, ReplayResult
from kernelbench_dist.harness._fuzz_judge import CaseJudge
from kernelbench_dist.harness._fuzz_search import wrong_at
from kernelbench_dist.harness._fuzz_snippet import snippet
from kernelbench_dist.harness._judge import Head, check_syntax, make_limits, make_options
from kernelbench_dist.harness._ranks import RanksKind
from kernelbench_dist.harness._results import Frozen
from kernelbench_dist.harness._session import Progress, Session, silent
from kernelbench_dist.harness._side import JudgedError
from kernelbench_dist.harness._submission import Submission, read_submission
from kernelbench_dist.harness._verdicts import Verdict

_LOAD_S, _BUILD_S = 60.0, 600.0


class Failure(Frozen):
    """All that a case needs to run again."""

    schema_version: Literal["kernelbench_dist.failure/1"] = "kernelbench_dist.failure/1"
    id: str
    found_at: str
    problem: str
    problem_path: str
    problem_sha256: str
    source_name: str
    source: str
    device: str
    dtype: str | None
    backward: bool
    ranks: RanksKind = "virtual"
    timeout_s: float
    varied: tuple[str, ...]
    case: FuzzCase
    verdict: Verdict
    reason: str


def keep(
    result: FuzzResult, session: Session, timeout_s: float, store: str | os.PathLike[str] | None
) -> FuzzResult:
    """Store a failure; returns the result with its snippet, and where it is stored.

    Besides ID.json there is ID.py, the snippet, and ID_submission.py where the submission came as
    text. The ID is the hash of problem, submission, case and options.
    """
    submission, case, options = session.submission, result.case, session.options
    assert submission is not None
    assert case is not None
    what = (
        session.info.sha256,
        submission.sha256,
        case.model_dump_json(),
        f"{options.device} {options.dtype} {options.backward} {options.ranks}",
    )
    name = hashlib.sha256("\n".join(what).encode()).hexdigest()[:16]
    folder = _folder(store)
    is_file = submission.name != "<source>"
    path = Path(submission.name).resolve() if is_file else folder / f"{name}_submission.py"
    program = snippet(result.reason, case, session, path)
    failure = Failure(
        id=name,
        found_at=result.started_at,
        problem=session.info.name,
        problem_path=session.address,
        problem_sha256=session.info.sha256,
        source_name=submission.name,
        source=submission.text,
        device=options.device,
        dtype=options.dtype,
        backward=options.backward,
        ranks=options.ranks,
        timeout_s=timeout_s,
        varied=result.varied,
        case=case,
        verdict=result.verdict,
        reason=result.reason,
    )
    update: dict[str, Any] = {"snippet": program}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not is_file:
            _write(path, submission.text)
        _write(folder / f"{name}.py", program)
        _write(folder / f"{name}.json", failure.model_dump_json(indent=1) + "\n")
    except OSError as error:
        # What was found is worth more than the file.
        update["notes"] = (*result.notes, f"the failure could not be stored: {error}")
    else:
        update["stored"] = str(folder / f"{name}.json")
        update["replay"] = f"kernelbench-dist replay {update['stored'] if store else name}"
    return result.model_copy(update=update)


def replay(
    file_or_id: str | os.PathLike[str],
    *,
    source: str | Path | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> ReplayResult:
    """Run a stored failure's case again, in fresh processes.

    Args:
        file_or_id: the file that `fuzz` stored, or the beginning of its id.
        source: another submission, such as the mended one; by default the stored text.
        store: the folder in which an id is looked up, as for `fuzz`.
        progress: called with what is being done.

    Returns:
        Whether the case still fails. A problem file that has changed since then is a note.

    Raises:
        FileNotFoundError: no such failure, or its problem is gone.
        ValueError: the file is no failure, or the id fits several.
    """
    path = _find(file_or_id, store)
    try:
        failure = Failure.model_validate_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} holds no failure of fuzz: {error}") from None
    problem = _problem(failure)
    submission = _submission(failure) if source is None else read_submission(source)
    options = make_options(
        problem,
        dtype=failure.dtype,
        seed=failure.case.seed,
        device=failure.device,
        backward=failure.backward,
        ranks=failure.ranks,
        trials=1,
    )
    limits = make_limits(max(_LOAD_S, failure.timeout_s), _BUILD_S, None)
    head, trial = Head(submission, problem), None
    session = Session(problem, options, limits, submission, progress=progress or silent)
    with head.judging(), session:
        check_syntax(submission)
        info = session.open_problem()
        if info.sha256 != failure.problem_sha256:
            session.notes.append(f"{info.path} has changed since the failure was stored")
        judge = CaseJudge(session, failure.timeout_s)
        judge.open()
        trial = judge.judge(failure.case)
        if trial is None:
            why = judge.first_skipped
            raise JudgedError(
                Verdict.PROBLEM_ERROR,
                why.reason if why else "in the problem, the reference is not right at this case",
                why.detail if why else "",
            )
        head.verdict, head.detail = trial.verdict, judge.detail
        where = failure.case.words(failure.varied)
        head.reason = (
            f"it does not fail any more at {where}; it was {failure.verdict}"
            if trial.verdict is Verdict.PASSED
            else f"still {wrong_at(failure.varied, failure.case, trial)}"
        )
    return ReplayResult(
        **head.fields(),
        options=session.options,
        builds=tuple(session.builds),
        notes=tuple(session.notes),
        varied=failure.varied,
        case=failure.case,
        trial=trial,
        cases=0 if trial is None else 1,
        stored=str(path),
    )


def _folder(store: str | os.PathLike[str] | None) -> Path:
    if store is not None:
        return Path(store).expanduser().resolve()
    if root := os.environ.get("KERNELBENCH_DIST_STATE"):
        return Path(root).expanduser().resolve() / "failures"
    root = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(root).expanduser().resolve() / "kernelbench_dist" / "failures"


def _find(file_or_id: str | os.PathLike[str], store: str | os.PathLike[str] | None) -> Path:
    path = Path(file_or_id)
    if path.is_file():
        return path.resolve()
    folder, wanted = _folder(store), os.fspath(file_or_id)
    if "/" in wanted or not wanted:
        raise FileNotFoundError(f"no file {wanted!r}")
    found = sorted(p for p in folder.glob("*.json") if p.name.startswith(wanted))
    if not found:
        raise FileNotFoundError(f"no file {wanted!r}, and no failure in {folder} begins so")
    if len(found) > 1:
        raise ValueError(f"{wanted!r} fits {', '.join(p.stem for p in found)}: give more of it")
    return found[0]


def _problem(failure: Failure) -> str:
    with contextlib.suppress(problems.ProblemError, FileNotFoundError):
        problems.find(failure.problem_path)
        return failure.problem_path
    try:
        # A problem of the suite, where the package lies elsewhere now.
        problems.find(failure.problem)
    except problems.ProblemError:
        raise FileNotFoundError(f"no problem file at {failure.problem_path}") from None
    return failure.problem


def _submission(failure: Failure) -> Submission:
    """The stored text under its old name."""
    text = failure.source if "\n" in failure.source else failure.source + "\n"
    return dataclasses.replace(read_submission(text), name=failure.source_name)


def _write(path: Path, text: str) -> None:
    """At once or not at all: a reader never sees half of it."""
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}-", encoding="utf-8", delete=False
    ) as file:
        try:
            file.write(text)
            file.flush()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
