"""One case of fuzzing, judged by workers that stay alive from case to case."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from kernelbench_dist.harness import _draws, _values
from kernelbench_dist.harness._fuzz_cases import FuzzCase, Plan
from kernelbench_dist.harness._memory import LAYOUTS
from kernelbench_dist.harness._oracle import NO_BOUND
from kernelbench_dist.harness._problem import Draw
from kernelbench_dist.harness._results import Trial
from kernelbench_dist.harness._session import Session
from kernelbench_dist.harness._side import JudgedError, Side
from kernelbench_dist.harness._verdicts import Verdict

_OF_VALUES = (Verdict.INCORRECT_VALUES, Verdict.NOT_FINITE, Verdict.NONDETERMINISTIC)
_LEAST_SHARE, _PATIENCE = 0.2, 20.0


class CaseJudge:
    """Judges cases of one session, whose problem is open.

    timeout_s: of one step of the submission; it is given more time to load.
    """

    def __init__(self, session: Session, timeout_s: float) -> None:
        self.session = session
        self.timeout_s = timeout_s
        # Less once it has hung, because shrinking waits for this long again and again.
        self.step_s = timeout_s
        self._slowest_s = 0.0
        self.detail = ""  # the traceback or output of the last case that did not run
        self.first_skipped: JudgedError | None = None
        self._judged_here = 0
        self._on_cpu = torch.device(session.options.device).type == "cpu"

    def open(self) -> None:
        """Start the submission."""
        self.session.open_submission()
        self._started()

    def restart(self) -> None:
        """A fresh process for the submission."""
        self.session.restart_submission()
        self._started()

    def _started(self) -> None:
        self._judged_here = 0
        self._set_limit()

    def _set_limit(self) -> None:
        candidate = self.session.candidate
        candidate.limits = replace(candidate.limits, step_s=self.step_s)

    def judge(self, case: FuzzCase) -> Trial | None:
        """The trial of a case; None where the reference does not run, or is not right itself.

        A case at which the process is lost runs again in a fresh one: memory that an earlier case
        has corrupted may come to light only now, and shrinking would go astray.

        Raises JudgedError(ENVIRONMENT_ERROR), and where the submission does not load again.
        """
        earlier = self._judged_here
        trial, lost = self._once(case)
        if lost:
            self.restart()
        if trial is None or not lost:
            return trial
        if trial.verdict is Verdict.TIMEOUT:
            self.step_s = max(_LEAST_SHARE * self.timeout_s, _PATIENCE * self._slowest_s)
            self._set_limit()
            return trial
        if not earlier:
            return trial
        trial, lost = self._once(case)
        if lost:
            self.restart()
        return trial

    def judge_afresh(self, case: FuzzCase) -> Trial | None:
        """As `judge`, in a fresh process and with all the time that the submission has."""
        self.step_s = self.timeout_s
        self.restart()
        return self._once(case)[0]

    def _once(self, case: FuzzCase) -> tuple[Trial | None, bool]:
        """The trial, or None as `judge`; and whether the submission's process can go on."""
        session, draw = self.session, None
        self._judged_here += 1
        self.detail = ""
        start = time.monotonic()
        try:
            session.construct_reference(case.seed, case.sizes)
            draw = session.draw(case.seed, jitter=False, values=case.values)
            trial, lost = self._run(case, draw)
            if trial.verdict is Verdict.PASSED:
                self._slowest_s = max(self._slowest_s, time.monotonic() - start)
            if trial.verdict in _OF_VALUES and not self._reference_is_right(draw):
                return None, lost
            return trial, lost
        except JudgedError as error:
            if error.verdict is not Verdict.PROBLEM_ERROR:
                raise
            self.first_skipped = self.first_skipped or error
            draw = None
            self.mend_reference(error)
            return None, not self._answers(session.candidate)
        finally:
            if draw is not None:
                with contextlib.suppress(JudgedError):
                    session.reference.ask("drop", {"id": draw.id})

    def _run(self, case: FuzzCase, draw: Draw) -> tuple[Trial, bool]:
        session = self.session
        try:
            session.construct_submission()
            return session.judge_draw(draw, case.sizes, layout=case.layout), False
        except JudgedError as error:
            if error.verdict in (Verdict.PROBLEM_ERROR, Verdict.ENVIRONMENT_ERROR):
                raise
            self.detail = error.detail
            trial = Trial(
                seed=case.seed,
                sizes=case.sizes,
                shapes=draw.shapes(),
                verdict=error.verdict,
                reason=error.reason,
            )
            return trial, not self._answers(session.candidate)

    def _answers(self, side: Side) -> bool:
        """Whether the process still serves requests after an error.

        Of several ranks some may have answered and others not; on a GPU an error may be sticky.
        """
        if not self._on_cpu or side.world_size > 1:
            return False
        try:
            side.ask("drop", {"id": -1})
        except JudgedError:
            return False
        return True

    def mend_reference(self, error: JudgedError) -> None:
        """Start the reference again where it cannot go on after an error."""
        reference = self.session.reference
        sticky = "CUDA error" in error.reason + error.detail or reference.world_size > 1
        try:
            if not sticky:
                reference.ask("drop", {"id": -1})
                return
        except JudgedError:
            pass
        reference.close()
        self.session.open_problem()

    def _reference_is_right(self, draw: Draw) -> bool:
        """Whether the reference in the judged dtype would pass, and by bounds that mean something.

        With values near the ends of their range it may itself be far off, or take another of two
        equal elements than in float64: such a case says nothing about a submission.
        """
        expected = self.session.expect(draw)
        eager = self.session.reference.ask("eager", {"id": draw.id}, step="forward()")
        for rank, (wanted, (_, got)) in enumerate(zip(expected, eager, strict=True)):
            if _values.compare(wanted, got, rank)[1] is not None or not _is_tight(wanted):
                return False
        return True


def _is_tight(expected: _values.Expected) -> bool:
    """Whether no bound is more than half of the largest value that is expected."""
    for value, bound in zip(expected.values, expected.bounds, strict=True):
        known = torch.isfinite(value) & (bound < NO_BOUND)
        if value.dtype == torch.bool or not bool(known.any()):
            continue
        largest = float(value[known].abs().max())
        if largest and float(bound[known].max()) > largest / 2:
            return False
    return True


def make_plan(
    judge: CaseJudge,
    values: Sequence[str] | None,
    layouts: Sequence[str] | None,
    least_size: int,
) -> Plan:
    """What varies for this problem and this submission, which is constructed to find out.

    Sizes: those that the problem names in VARIES; and where ModelNew takes arguments, those that
    get_init_inputs() hands on as well. Raises JudgedError where ModelNew cannot be constructed.
    """
    session = judge.session
    constants = dict(session.info.constants)
    args = session.construct_reference(0, constants)
    draw = session.draw(0, jitter=False)
    fixed = session.construct_submission()

    def is_argument(name: str) -> bool:
        for other in (constants[name] + 1, constants[name] * 2, max(constants[name] - 1, 0)):
            try:
                return session.construct_reference(0, {**constants, name: other}) != args
            except JudgedError as error:
                if error.verdict is not Verdict.PROBLEM_ERROR:
                    raise
                judge.mend_reference(error)
        return False

    varies = session.info.varies
    names = tuple(n for n in constants if n in varies or (not fixed and is_argument(n)))
    inputs = [t for ts, n in zip(draw.tensors, draw.counts, strict=True) for t in ts[:n]]
    kinds: set[str] = {"normal"}
    if any(t.is_floating_point() or t.is_complex() for t in inputs):
        kinds.update(_draws.FLOAT_VALUES)
    if any(not t.is_floating_point() and t.dtype != torch.bool for t in inputs):
        kinds.update(_draws.INT_VALUES)
    return Plan(
        constants=constants,
        names=names,
        values=tuple(v for v in _draws.VALUES if v in kinds and (not values or v in values))
        or ("normal",),
        layouts=tuple(k for k in LAYOUTS if not layouts or k in layouts),
        least_size=least_size,
    )
