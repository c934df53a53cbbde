"""The search for the smallest case that fails: hypothesis draws and shrinks."""

from __future__ import annotations

import contextlib
import tempfile
import time
from typing import Any

from kernelbench_dist.harness._fuzz_cases import FuzzCase, Plan
from kernelbench_dist.harness._fuzz_judge import CaseJudge
from kernelbench_dist.harness._results import Trial
from kernelbench_dist.harness._session import Progress
from kernelbench_dist.harness._side import JudgedError
from kernelbench_dist.harness._verdicts import Verdict

_MOST_CANDIDATES = 8


class _OutOfTimeError(BaseException):
    """Not an Exception, so that hypothesis lets it pass."""


class _FailsError(Exception):
    """A case fails: hypothesis shrinks it."""


class _EndError(BaseException):
    """The judgement ends for another reason than a case; hypothesis lets it pass."""

    def __init__(self, error: JudgedError) -> None:
        super().__init__(error.reason)
        self.error = error


class Search:
    """Cases drawn and shrunk within a time limit; what each case gave is remembered."""

    def __init__(self, judge: CaseJudge, plan: Plan, time_limit_s: float, tell: Progress) -> None:
        self.judge, self.plan, self.tell = judge, plan, tell
        self.time_limit_s = time_limit_s
        self.deadline = time.monotonic() + time_limit_s
        self.trials: dict[str, Trial | None] = {}
        self.failed: list[FuzzCase] = []
        self.notes = judge.session.notes
        self.out_of_time = False

    def run(self, examples: int, seed: int) -> None:
        """The problem's own sizes, then cases that are drawn until one fails; and shrink it."""
        try:
            # First, so that something is judged however little time there is.
            self._trial(self.plan.first())
            self._draw(examples, seed)
            self._descend()
        except _OutOfTimeError:
            self.out_of_time = True
        except _EndError as end:
            raise end.error from None

    def found(self) -> dict[str, Any]:
        """Fields of a FuzzResult. Raises JudgedError where no drawn case could be judged."""
        judged = sum(trial is not None for trial in self.trials.values())
        fields = {
            "varied": self.plan.names,
            "cases": judged,
            "skipped": len(self.trials) - judged,
        }
        if self.failed:
            fields |= self._failure()
        elif judged > 1 or (judged and self.out_of_time):
            fields |= {"verdict": Verdict.PASSED, "reason": self._passed(judged), "detail": ""}
        else:
            skipped = self.judge.first_skipped
            why = skipped.reason if skipped else "its own answers are not right in the judged dtype"
            raise JudgedError(
                Verdict.PROBLEM_ERROR,
                f"{judged} of {len(self.trials)} cases could be judged: {why}",
                skipped.detail if skipped else "",
            )
        return fields

    def _failure(self) -> dict[str, Any]:
        """Of the smallest case that fails in a fresh process too, else of the smallest."""
        self.tell("running the smallest case in a fresh process")
        ordered = sorted(self.failed, key=self.plan.order)
        case, trial, detail, reproduced = ordered[0], self.trials[_key(ordered[0])], "", False
        for candidate in ordered[:_MOST_CANDIDATES]:
            again = None
            with contextlib.suppress(JudgedError):
                again = self.judge.judge_afresh(candidate)
            if again is not None and again.verdict is not Verdict.PASSED:
                case, trial, detail, reproduced = candidate, again, self.judge.detail, True
                break
        if not reproduced:
            self.notes.append(
                "in a fresh process the case passes: the submission keeps something from call to "
                "call, or chance has a part in it"
            )
        elif case != ordered[0]:
            self.notes.append("smaller cases failed too, but only after others in one process")
        if self.out_of_time:
            self.notes.append(
                f"shrinking was cut short by the time limit of {self.time_limit_s:g} s: a smaller "
                "case may fail too"
            )
        assert trial is not None
        return {
            "verdict": trial.verdict,
            "reason": wrong_at(self.plan.names, case, trial),
            "detail": detail,
            "case": case,
            "trial": trial,
            "reproduced": reproduced,
            "shrunk": reproduced and case == ordered[0] and not self.out_of_time,
        }

    def _passed(self, judged: int) -> str:
        varied = ", ".join(self.plan.names) or "no size"
        ended = f", when the time limit of {self.time_limit_s:g} s came"
        return (
            f"{judged} cases agree with the reference ({varied} varied)"
            f"{ended if self.out_of_time else ''}"
        )

    def _draw(self, examples: int, seed: int) -> None:
        import hypothesis
        from hypothesis import HealthCheck, Phase, Verbosity, configuration, errors

        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
            verbosity=Verbosity.quiet,
        )
        @hypothesis.seed(seed)
        @hypothesis.given(self.plan.strategy())
        def every_case_passes(case: FuzzCase) -> None:
            trial = self._trial(case)
            if trial is None:
                hypothesis.reject()
            elif trial.verdict is not Verdict.PASSED:
                raise _FailsError

        # Else it leaves a folder of its own where the caller happens to stand.
        home = configuration.storage_directory(intent_to_write=False).home_directory
        with tempfile.TemporaryDirectory() as folder:
            configuration.set_hypothesis_home_dir(folder)
            try:
                with contextlib.suppress(_FailsError, errors.Unsatisfiable):
                    every_case_passes()
            finally:
                configuration.set_hypothesis_home_dir(home)

    def _descend(self) -> None:
        """Go on to a simpler case while there is one that fails.

        Hypothesis leaves this out where sizes fail at random, or at every fourth.
        """
        case = min(self.failed, key=self.plan.order, default=None)
        while case is not None:
            now = case
            case = next((c for c in self.plan.simpler(now) if self._fails(c)), None)

    def _fails(self, case: FuzzCase) -> bool:
        trial = self._trial(case)
        return trial is not None and trial.verdict is not Verdict.PASSED

    def _trial(self, case: FuzzCase) -> Trial | None:
        key = _key(case)
        if key not in self.trials:
            if self.trials and time.monotonic() > self.deadline:
                raise _OutOfTimeError
            word = "shrinking" if self.failed else "looking for a failure"
            self.tell(f"{word}: case {len(self.trials) + 1}, {case.words(self.plan.names)}")
            try:
                trial = self.judge.judge(case)
            except JudgedError as error:
                raise _EndError(error) from None
            self.trials[key] = trial
            if trial is not None and trial.verdict is not Verdict.PASSED:
                self.failed.append(case)
        return self.trials[key]


def wrong_at(names: tuple[str, ...], case: FuzzCase, trial: Trial) -> str:
    """A failure in one line."""
    what = " ".join(f"{trial.verdict}: {trial.reason}".split())
    return f"wrong at {case.words(names)}: {what}"


def _key(case: FuzzCase) -> str:
    return case.model_dump_json()
