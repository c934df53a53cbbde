"""compare: which of several submissions is the fastest, measured side by side."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kernelbench_dist.harness import _device, _timing
from kernelbench_dist.harness._judge import (
    Found,
    Head,
    Sizes,
    check_syntax,
    judge_problem,
    judge_trials,
    make_limits,
    make_options,
)
from kernelbench_dist.harness._problem import derived
from kernelbench_dist.harness._ranks import RanksKind
from kernelbench_dist.harness._results import (
    Build,
    Frozen,
    Launches,
    Options,
    Result,
    Source,
    SpeedOfLight,
    Trial,
)
from kernelbench_dist.harness._session import Progress, Session, silent
from kernelbench_dist.harness._side import JudgedError, Side
from kernelbench_dist.harness._static import static_check
from kernelbench_dist.harness._submission import Submission, read_submission
from kernelbench_dist.harness._submit import (
    check_floor,
    check_timing,
    cost_of,
    judged_dtype,
    launches_of,
    speed_of_light,
    timing_of,
)
from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.timing import BenchResult, Ratio
from kernelbench_dist.timing._result import Kind
from kernelbench_dist.timing._result import compare as ratios_to

MOST = 32
_OPPOSITE = {"faster": "slower", "slower": "faster", "same": "same"}

Sources = Sequence[str | Path] | Mapping[str, str | Path]


class Entrant(Frozen):
    """One of those that are compared: how it was judged, under the name that `timing` has it."""

    name: str
    submission: Source
    verdict: Verdict
    reason: str
    detail: str = ""
    builds: tuple[Build, ...] = ()
    trials: tuple[Trial, ...] = ()
    launches: Launches | None = None
    speed_of_light: SpeedOfLight | None = None

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.PASSED


class ComparisonResult(Result):
    """Submissions timed in the same rounds. PASSED where every one of them was right.

    `timing` holds "reference" and those that passed, by name; None where none did. `pairs` are the
    ratios of every two of these, from the same samples.
    """

    tool = "compare"
    options: Options | None = None
    entrants: tuple[Entrant, ...] = ()
    timing: BenchResult | None = None
    timing_of: str | None = None
    timing_sizes: dict[str, int] | None = None
    waited_seconds: float | None = None
    pairs: tuple[Ratio, ...] = ()

    @property
    def ranking(self) -> list[str]:
        """The names of those that were timed, the fastest first."""
        timing = self.timing
        if timing is None:
            return []
        known = ((c.name, c.timing(timing.kind)) for c in timing.candidates)
        times = {name: t.median_us for name, t in known if t is not None}
        return sorted(
            (e.name for e in self.entrants if e.passed and e.name in times),
            key=lambda name: times[name],
        )

    def ratio(self, name: str, to: str, kind: Kind | None = None) -> Ratio:
        """The time of `name` over that of `to`, each an entrant or "reference".

        Raises KeyError where the two were not timed, or are the same.
        """
        if self.timing is None:
            raise KeyError(f"nothing was timed, so that {name!r} has no ratio to {to!r}")
        kind = kind or self.timing.kind
        known = (*self.pairs, *self.timing.ratios)
        for ratio in known:
            if (ratio.name, ratio.baseline, ratio.kind) == (name, to, kind):
                return ratio
            if (ratio.baseline, ratio.name, ratio.kind) == (name, to, kind):
                return _turned(ratio)
        timed = [c.name for c in self.timing.candidates]
        raise KeyError(f"no ratio of {name!r} to {to!r} in {kind} time; timed were {timed}")


def _turned(r: Ratio) -> Ratio:
    verdict: Any = _OPPOSITE[r.verdict]
    return Ratio(r.baseline, r.name, r.kind, 1 / r.ratio, 1 / r.high, 1 / r.low, verdict, r.note)


def compare(
    submissions: Sources,
    problem: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    sizes: Sizes = None,
    trials: int = 3,
    seed: int | None = None,
    device: str | None = None,
    backward: bool | None = None,
    ranks: RanksKind = "virtual",
    static: bool = True,
    rounds: int = 20,
    min_time_ms: float = 2.0,
    timeout_s: float = 60.0,
    build_timeout_s: float = 600.0,
    memory_limit_bytes: int | None = None,
    progress: Progress | None = None,
) -> ComparisonResult:
    """Judge 2 to 32 submissions, and time those that are right beside each other.

    Each is judged as `submit_kernel` judges it, on the same inputs. Then all of them and the
    reference take turns in every round: what disturbs the device disturbs all alike, and the ratio
    of any two has an interval of its own. One that fails does not end the others'.

    Args:
        submissions: paths or texts, which are named after their files; or a mapping from names.
        problem, dtype, sizes, trials, seed, device, backward, ranks, static, rounds, min_time_ms,
            timeout_s, build_timeout_s, memory_limit_bytes, progress: as for `submit_kernel`.

    Raises:
        FileNotFoundError, ProblemError: no such file or problem.
        ValueError: an argument's value, named.
    """
    check_timing(rounds, min_time_ms)
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
    entries = [_Entry(name, source) for name, source in _named(submissions).items()]
    head, found, measured = Head(None, problem), Found(options), dict[str, Any]()
    session = Session(problem, options, limits, progress=progress or silent)
    with head.judging(), session:
        found.session = session
        wanted = judge_problem(session, sizes, backward, found)
        for entry in entries:
            entry.judge(session, wanted, static)
        at = session.options.sizes[-1] if session.options.sizes else {}
        measured["timing_sizes"] = dict(at)
        session.progress("waiting for the device")
        with _device.exclusive(session.options.device) as waited:
            measured["waited_seconds"] = waited
            _measure(session, entries, at, rounds, min_time_ms, measured)
    entrants = tuple(entry.entrant(head.verdict) for entry in entries)
    _conclude(head, entrants)
    result = ComparisonResult(
        **head.fields(),
        options=session.options,
        notes=tuple(session.notes),
        entrants=entrants,
        **measured,
    )
    return result if head.reason else result.model_copy(update={"reason": summary(result)})


def _conclude(head: Head, entrants: Sequence[Entrant]) -> None:
    """The verdict is that of the first which failed, if nothing else was in the way."""
    failed = [e for e in entrants if not e.passed]
    if head.verdict is Verdict.PASSED and failed:
        head.verdict = failed[0].verdict
        others = f" (and {len(failed) - 1} more failed)" if len(failed) > 1 else ""
        head.reason = f"{failed[0].name}: {failed[0].reason}{others}"
        head.detail = failed[0].detail


def summary(result: ComparisonResult) -> str:
    """Which is the fastest, and how the others stand to it."""
    first, *others = result.ranking
    said = []
    for name in others:
        r = result.ratio(name, first)
        said.append(f"{name} {r.verdict}, {r.ratio:.3f} of its time [{r.low:.3f}, {r.high:.3f}]")
    least = "the least median is that of"
    return f"{least} {first}: {'; '.join(said)}" if said else f"{first} alone was timed"


@dataclass
class _Entry:
    """A submission on its way through the judgement."""

    name: str
    read: Submission
    verdict: Verdict | None = None
    reason: str = "it was not judged"
    detail: str = ""
    builds: list[Build] = field(default_factory=list)
    trials: tuple[Trial, ...] = ()
    launches: Launches | None = None
    light: SpeedOfLight | None = None
    side: Side | None = None

    def judge(self, session: Session, wanted: Sequence[dict[str, int]], static: bool) -> None:
        """Static check, build and trials, in a process that stays for the timing."""
        found = Found(session.options)
        session.submission, session.builds = self.read, self.builds
        say, session.progress = session.progress, lambda doing: say(f"{self.name}: {doing}")
        try:
            check_syntax(self.read)
            checked = static_check(self.read, session.name)
            if static and not checked.passed:
                raise JudgedError(checked.verdict, f"static check: {checked.reason}")
            judge_trials(session, wanted, found)
            self.side = session.candidate
            self.verdict, self.reason = Verdict.PASSED, "it agrees with the reference"
        except JudgedError as error:
            if error.verdict is Verdict.PROBLEM_ERROR:
                raise
            self.fail(error)
        finally:
            session.progress = say
            self.trials = tuple(found.trials)

    def fail(self, error: JudgedError) -> None:
        self.verdict, self.reason, self.detail = error.verdict, error.reason, error.detail
        if self.side is not None:
            self.side.close()
        self.side = None

    def take(self, session: Session) -> None:
        """Make it the session's own submission, with the parameters of the reference."""
        assert self.side is not None
        session.submission, session.candidate = self.read, self.side
        session.construct_submission()

    def entrant(self, ended: Verdict) -> Entrant:
        """ended: the verdict that ended all, for what was not judged by then."""
        return Entrant(
            name=self.name,
            submission=self.read.source(),
            verdict=self.verdict or ended,
            reason=self.reason,
            detail=self.detail,
            builds=tuple(self.builds),
            trials=self.trials,
            launches=self.launches,
            speed_of_light=self.light,
        )


def _measure(
    session: Session,
    entries: Sequence[_Entry],
    at: Mapping[str, int],
    rounds: int,
    min_time_ms: float,
    measured: dict[str, Any],
) -> None:
    """Launches and times, into `measured` as they are known. Raises JudgedError of the problem."""
    seed = derived(session.options.seed, "measuring")
    while timed := [entry for entry in entries if entry.side is not None]:
        session.construct_reference(seed, at)
        draw = session.draw(seed, jitter=False)
        for entry in timed:
            try:
                entry.take(session)
                session.put(draw)
                entry.launches = launches_of(session, entry.builds, draw)
            except JudgedError as error:
                entry.fail(error)
        timed = [entry for entry in timed if entry.side is not None]
        if not timed:
            return
        cost = cost_of(session, draw)
        session.progress(f"timing {len(timed)} submissions, {rounds} rounds")
        sides = {entry.name: (entry.read, entry.side) for entry in timed if entry.side}
        session.builds = []  # what is built by now is known
        try:
            timing = _timing.measure(
                session, rounds=rounds, min_time_ms=min_time_ms, candidates=sides
            )
        except JudgedError as error:
            culprit = next((entry for entry in timed if entry.name == error.who), None)
            if culprit is None:
                raise
            for entry in timed:
                entry.side = sides[entry.name][1]  # which may have started again
            culprit.fail(error)  # and the others once more, without it
            continue
        for entry in timed:
            entry.light = speed_of_light(
                timing[entry.name], cost, session.options.device, judged_dtype(draw)
            )
            try:
                check_floor(timing[entry.name], entry.light)
            except JudgedError as error:
                entry.fail(error)
        measured |= {"timing": timing, "timing_of": timing_of(session.options)}
        measured["pairs"] = _pairs(timing)
        return


def _pairs(timing: BenchResult) -> tuple[Ratio, ...]:
    """Every two candidates but the reference, in every kind that was measured."""
    mine = [c for c in timing.candidates if c.name != timing.baseline]
    on_gpu = timing.environment.device.startswith("cuda")
    return tuple(
        ratio
        for i, base in enumerate(mine)
        for ratio in ratios_to(mine[i:], base.name, timing.seed, timing.method, on_gpu=on_gpu)
    )


def _named(submissions: Sources) -> dict[str, Submission]:
    """Names that tell them apart: of their files, or as much of the paths as it takes."""
    if isinstance(submissions, (str, os.PathLike)):
        raise TypeError(f"submissions is {submissions!r}; a list of 2 to {MOST} is accepted")
    if isinstance(submissions, Mapping):
        named = {str(name): read_submission(source) for name, source in submissions.items()}
    else:
        read = [read_submission(source) for source in submissions]
        names = [Path(s.name).name for s in read]
        if len(set(names)) < len(names):
            names = [s.name for s in read]
        if len(set(names)) < len(names):
            names = [f"{i}. {name}" for i, name in enumerate(names, 1)]
        named = dict(zip(names, read, strict=True))
    if not 2 <= len(named) <= MOST:
        raise ValueError(f"there are {len(named)} submissions; 2 to {MOST} are accepted")
    if taken := {"reference", "empty"} & named.keys():
        raise ValueError(f"a submission is named {taken.pop()!r}; any other name is accepted")
    return named
