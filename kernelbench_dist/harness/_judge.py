"""compile_kernel, run_correctness and check_problem: the tools that take no time of the device."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, get_args

import torch

from kernelbench_dist import problems
from kernelbench_dist.harness import _audit
from kernelbench_dist.harness._problem import ProblemInfo, derived, new_seed
from kernelbench_dist.harness._ranks import RanksKind
from kernelbench_dist.harness._reference import check_sizes
from kernelbench_dist.harness._results import (
    CompileResult,
    CorrectnessResult,
    Options,
    ProblemResult,
    Trial,
)
from kernelbench_dist.harness._session import Progress, Session, silent
from kernelbench_dist.harness._side import JudgedError, Limits
from kernelbench_dist.harness._submission import Submission, read_submission
from kernelbench_dist.harness._verdicts import Verdict

Sizes = str | Mapping[str, int] | Sequence[str | Mapping[str, int]] | None
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def compile_kernel(
    source: str | Path,
    problem: str | Path,
    *,
    device: str | None = None,
    ranks: RanksKind = "virtual",
    timeout_s: float = 60.0,
    build_timeout_s: float = 600.0,
    progress: Progress | None = None,
) -> CompileResult:
    """Load a submission, and build what it builds.

    Args:
        source: the submission: a path, or the text of the file.
        problem: "level2/47", "47", or a file; ModelNew is constructed with its arguments.
        device: "cpu", "cuda" or "cuda:N"; by default the GPU if there is one.
        ranks: of a problem of several, "virtual": threads of one process, on one device, where a
            deadlock is found at once; or "gloo": processes.
        timeout_s: for each step of the submission, without what it builds.
        build_timeout_s: for each extension.
        progress: called with a few words at each step.

    Returns:
        Its `builds` hold the compiler's messages by file and line, and what each kernel uses. A
        build comes from the cache where the same has been built before.

    Raises:
        FileNotFoundError, ProblemError: no such file or problem.
        ValueError: an argument's value, named.
    """
    options = make_options(problem, device=device, ranks=ranks, trials=1)
    limits = make_limits(timeout_s, build_timeout_s, None)
    submission = read_submission(source)
    head, builds, notes = Head(submission, problem), [], []
    tell = progress or silent
    with head.judging(), Session(problem, options, limits, submission, progress=tell) as session:
        builds, notes = session.builds, session.notes
        check_syntax(submission)
        session.open_problem()
        session.construct_reference(options.seed, {})
        session.open_submission()
        session.construct_submission()
        head.reason = f"it loads and builds ({len(session.builds)} extension(s))"
    return CompileResult(**head.fields(), builds=tuple(builds), notes=tuple(notes))


def run_correctness(
    source: str | Path,
    problem: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    sizes: Sizes = None,
    trials: int = 5,
    seed: int | None = None,
    device: str | None = None,
    backward: bool | None = None,
    ranks: RanksKind = "virtual",
    timeout_s: float = 60.0,
    build_timeout_s: float = 600.0,
    memory_limit_bytes: int | None = None,
    progress: Progress | None = None,
) -> CorrectnessResult:
    """Judge whether a submission gives the reference's answers.

    In each trial the inputs are drawn anew, the parameters of Model are copied into ModelNew by
    name, and ModelNew runs three times: once with uninitialised memory filled with NaN, then twice
    as it is, to compare the bits. Every element is compared with the reference in float64.

    Args:
        source, problem, device, ranks, timeout_s, build_timeout_s, progress: as for
            `compile_kernel`.
        dtype: floating-point inputs and parameters are converted to it; None leaves them.
        sizes: one or several: a name that the problem defines ("large"), values ("B=25,K=3", or a
            mapping), "all" for all names. None: as the problem draws them, with its jitter.
        trials: draws for each of the sizes.
        seed: of the first trial; the others follow from it. None: one that nobody can guess.
        backward: whether gradients of inputs and parameters are judged too; None: as the problem
            says.
        memory_limit_bytes: of the submission's process and its children.

    Returns:
        Its `trials` end with the first that failed; `replay` is the command that repeats that one.
    """
    options = make_options(
        problem,
        dtype=dtype,
        sizes=sizes,
        trials=trials,
        seed=seed,
        device=device,
        backward=backward,
        ranks=ranks,
    )
    limits = make_limits(timeout_s, build_timeout_s, memory_limit_bytes)
    submission = read_submission(source)
    head, found = Head(submission, problem), Found(options)
    tell = progress or silent
    with head.judging(), Session(problem, options, limits, submission, progress=tell) as session:
        found.session = session
        check_syntax(submission)
        judge_correctness(session, sizes, backward, found)
        head.reason = f"{len(found.trials)} of {len(found.trials)} trials agree with the reference"
    return CorrectnessResult(**head.fields(), **found.fields(submission))


def check_problem(
    problem: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    sizes: Sizes = None,
    seed: int | None = None,
    device: str | None = None,
    ranks: RanksKind = "virtual",
    timeout_s: float = 60.0,
    progress: Progress | None = None,
) -> ProblemResult:
    """Judge a problem: whether it runs on several draws, and which trivial answers pass for it."""
    options = make_options(
        problem, dtype=dtype, sizes=sizes, seed=seed, device=device, ranks=ranks, trials=1
    )
    head, passing, tell = Head(None, problem), {}, progress or silent
    session = Session(problem, options, make_limits(timeout_s, 1.0, None), progress=tell)
    with head.judging(), session:
        info = session.open_problem()
        for at in resolve_sizes(sizes, info):
            tell("checking the problem")
            passing = _audit.audit(session, options.seed, at)
        head.reason = "it runs, and no trivial answer passes that is not declared"
    return ProblemResult(**head.fields(), options=session.options, trivial_answers=passing)


# What the tools share


class Found:
    """Options and trials of a judgement under way, complete also where it breaks off."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.trials: list[Trial] = []
        self.session: Session | None = None

    def fields(self, submission: Submission) -> dict[str, Any]:
        session = self.session
        return {
            "options": session.options if session else self.options,
            "builds": tuple(session.builds) if session else (),
            "notes": tuple(session.notes) if session else (),
            "trials": tuple(self.trials),
            "replay": self._replay(submission),
        }

    def _replay(self, submission: Submission) -> str | None:
        failed = [t for t in self.trials if t.verdict is not Verdict.PASSED]
        if not failed:
            return None
        session, trial = self.session, failed[0]
        assert session is not None
        options = session.options
        # Text that came without a file comes through a pipe again. A stem names no other file.
        source = "-" if submission.name == "<source>" else submission.name
        problem = session.name if "/" in session.name else session.address
        words = ["kernelbench-dist", "run-correctness", source, problem]
        words += ["--seed", str(trial.seed), "--trials", "1", "--device", options.device]
        if trial.sizes:
            words += ["--sizes", ",".join(f"{k}={v}" for k, v in trial.sizes.items())]
        words += ["--dtype", options.dtype] if options.dtype else []
        words += ["--ranks", "gloo"] if options.ranks == "gloo" and options.world_size > 1 else []
        if options.backward != session.info.backward:
            words.append("--backward" if options.backward else "--no-backward")
        return shlex.join(words)


class Head:
    """The fields that every result has; verdict and reason come from a JudgedError, if any."""

    def __init__(self, submission: Submission | None, problem: str | Path) -> None:
        self.submission = submission
        self.problem = problems.find(problem)[0]
        self.verdict = Verdict.PASSED
        self.reason = self.detail = ""
        self.started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._start = time.monotonic()

    @contextmanager
    def judging(self) -> Iterator[None]:
        try:
            yield
        except JudgedError as error:
            self.verdict, self.reason, self.detail = error.verdict, error.reason, error.detail

    def fields(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "detail": self.detail,
            "submission": self.submission.source() if self.submission else None,
            "problem": self.problem,
            "started_at": self.started_at,
            "seconds": time.monotonic() - self._start,
        }


def judge_correctness(session: Session, sizes: Sizes, backward: bool | None, found: Found) -> None:
    """Audit the problem, load the submission and run its trials. Raises JudgedError."""
    judge_trials(session, judge_problem(session, sizes, backward, found), found)


def judge_problem(
    session: Session, sizes: Sizes, backward: bool | None, found: Found
) -> list[dict[str, int]]:
    """Load and audit the problem; the sizes that were asked for. Raises JudgedError."""
    info = open_problem(session, backward)
    wanted = resolve_sizes(sizes, info)
    given = {"sizes": tuple(wanted) if sizes else ()}
    session.options = session.options.model_copy(update=given)
    found.options = session.options
    session.progress("checking the problem")
    _audit.audit(session, derived(session.options.seed, "problem"), {})
    return wanted


def judge_trials(session: Session, wanted: Sequence[dict[str, int]], found: Found) -> None:
    """Load the submission and run its trials at all sizes. Raises JudgedError."""
    seed = session.options.seed
    session.open_submission()
    for at in wanted:
        for i in range(session.options.trials):
            total = len(wanted) * session.options.trials
            session.progress(f"trials: {len(found.trials) + 1} of {total}")
            trial_seed = seed if i == 0 else derived(seed, f"trial {i}")
            trial = session.trial(trial_seed, at)
            if found.trials:
                found.trials[-1] = found.trials[-1].without_maps()
            found.trials.append(trial)
            if trial.verdict is not Verdict.PASSED:
                raise JudgedError(trial.verdict, f"trial {len(found.trials)}: {trial.reason}")


def open_problem(session: Session, backward: bool | None) -> ProblemInfo:
    """Load the problem; backward: whether gradients are judged, None for what the file says."""
    info = session.open_problem()
    if backward is None and info.backward != session.options.backward:
        # Only the file says whether gradients are asked for: the workers start again.
        session.reference.close()
        session.options = session.options.model_copy(update={"backward": info.backward})
        session.open_problem()
    return info


def check_syntax(submission: Submission) -> None:
    """Raise JudgedError where the file does not parse."""
    error = submission.syntax_error
    if error is not None:
        raise JudgedError(
            Verdict.COMPILE_ERROR,
            f"{Path(submission.name).name}:{error.lineno}: {error.msg}",
            (error.text or "").rstrip(),
        )


def make_options(
    problem: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    sizes: Sizes = None,
    trials: int = 5,
    seed: int | None = None,
    device: str | None = None,
    backward: bool | None = None,
    ranks: RanksKind = "virtual",
) -> Options:
    """Checked options. ValueError names what is wrong and what is accepted."""
    problems.find(problem)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f"device is {device!r}; 'cpu', 'cuda' and 'cuda:N' are accepted")
    if device == "cuda":
        device = f"cuda:{torch.cuda.current_device() if torch.cuda.is_available() else 0}"
    name = None if dtype is None else str(dtype).removeprefix("torch.")
    if name is not None and name not in _FLOATS:
        raise ValueError(f"dtype is {name!r}; {', '.join(_FLOATS)} are accepted")
    if isinstance(trials, bool) or not isinstance(trials, int) or not 1 <= trials <= 10_000:
        raise ValueError(f"trials is {trials!r}; 1 to 10000 is accepted")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 1 << 62):
        raise ValueError(f"seed is {seed!r}; an int from 0 to 2**62 - 1 is accepted")
    if ranks not in get_args(RanksKind):
        raise ValueError(f"ranks is {ranks!r}; 'virtual' or 'gloo' is accepted")
    return Options(
        device=device,
        dtype=name,
        sizes=({},) if sizes else (),  # resolved once the problem is loaded
        trials=trials,
        seed=new_seed() if seed is None else seed,
        backward=bool(backward),
        ranks=ranks,
    )


def make_limits(step_s: float, build_s: float, memory_bytes: int | None) -> Limits:
    for name, value in (("timeout_s", step_s), ("build_timeout_s", build_s)):
        if not 0 < value < 1e6:
            raise ValueError(f"{name} is {value!r}; a positive number of seconds is accepted")
    if memory_bytes is not None and memory_bytes < 1 << 28:
        raise ValueError(f"memory_limit_bytes is {memory_bytes}; {1 << 28} or more is accepted")
    return Limits(step_s, memory_bytes, build_s)


def resolve_sizes(sizes: Sizes, info: ProblemInfo) -> list[dict[str, int]]:
    """The sizes asked for, as values; [{}] for the problem's own."""
    if not sizes:
        return [{}]
    several = [sizes] if isinstance(sizes, (str, Mapping)) else list(sizes)
    result: list[dict[str, int]] = []
    for one in several:
        if one == "all":
            result += [dict(values) for values in info.sizes.values()]
            continue
        values = _parse_sizes(one, info) if isinstance(one, str) else dict(one)
        check_sizes(info.constants, values)
        result.append(values)
    return result


def one_size(sizes: Sizes, info: ProblemInfo) -> dict[str, int]:
    """As `resolve_sizes`, where there is one to run at. ValueError for several."""
    found = resolve_sizes(sizes, info)
    if len(found) != 1:
        raise ValueError(f"sizes are {len(found)}; one is accepted here")
    return found[0]


def _parse_sizes(text: str, info: ProblemInfo) -> dict[str, int]:
    if text in info.sizes:
        return dict(info.sizes[text])
    parts = [re.fullmatch(r"\s*(\w+)\s*=\s*(\d+)\s*", part) for part in text.split(",")]
    if not all(parts):
        named = ", ".join(info.sizes) or "it names none"
        raise ValueError(f"sizes {text!r}; accepted: names ({named}, or all), or as 'B=25,K=3'")
    return {part[1]: int(part[2]) for part in parts if part}
