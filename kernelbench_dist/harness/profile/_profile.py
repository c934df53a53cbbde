"""profile_kernel: where the time of a submission goes, and what to try."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, Field

from kernelbench_dist import _peaks
from kernelbench_dist.harness import _device, _submit
from kernelbench_dist.harness._answers import Answer, PoolAnswer, SampleAnswer, read
from kernelbench_dist.harness._judge import (
    Head,
    check_syntax,
    make_limits,
    make_options,
    one_size,
    open_problem,
)
from kernelbench_dist.harness._problem import Draw, derived
from kernelbench_dist.harness._session import Progress, Session, silent
from kernelbench_dist.harness._side import JudgedError, Side
from kernelbench_dist.harness._submission import Submission, read_submission
from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.harness.profile import _classes, _hints, _ncu
from kernelbench_dist.harness.profile._results import (
    Activity,
    KernelProfile,
    Operator,
    ProfileResult,
    Times,
)

_PROFILED_CALLS = 10
_SAMPLES = 9
_POOL_US = 2000.0
_MOST_POOL_CALLS = 200
_COUNTERS_S = 300.0
# Without an answer that was right these say nothing about a kernel.
_PROFILED_ALL_THE_SAME = (
    Verdict.INCORRECT_VALUES,
    Verdict.NOT_FINITE,
    Verdict.NONDETERMINISTIC,
    Verdict.INCORRECT_SHAPE,
    Verdict.INCORRECT_DTYPE,
    Verdict.INPUT_MUTATED,
)


def profile_kernel(
    source: str | Path,
    problem: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    sizes: str | Mapping[str, int] | None = None,
    seed: int | None = None,
    device: str | None = None,
    backward: bool | None = None,
    counters: bool = True,
    timeout_s: float = 60.0,
    build_timeout_s: float = 600.0,
    memory_limit_bytes: int | None = None,
    keep: str | Path | None = None,
    progress: Progress | None = None,
) -> ProfileResult:
    """Show where the time of one call goes, what class it is in, and what to try.

    Kernels with their time, grid and block; hardware counters of each where Nsight Compute may
    read them; its class and speed of light, with the figures that say so; and hints. One trial
    says whether its answers are right; a wrong kernel is profiled, too.

    Args:
        source, problem, dtype, seed, device, backward, timeout_s, build_timeout_s,
            memory_limit_bytes, progress: as for `run_correctness`. Several ranks are virtual.
        sizes: a name that the problem defines ("large"), values ("B=25,K=3"), or a mapping; None:
            the problem's own.
        counters: whether hardware counters are read, which runs every kernel some 40 times.
        keep: a file for what Nsight Compute printed, as it is.

    Returns:
        What could be measured here. Without a GPU: torch's operators, call time, and the problem's
        cost. Without counters: times, kernels, and a class by the problem's cost; each says why.

    Raises:
        FileNotFoundError, ProblemError: no such file or problem.
        ValueError: an argument's value, named.
    """
    options = make_options(
        problem, dtype=dtype, sizes=sizes, trials=1, seed=seed, device=device, backward=backward
    )
    limits = make_limits(timeout_s, build_timeout_s, memory_limit_bytes)
    submission = read_submission(source)
    head, tell = Head(submission, problem), progress or silent
    found: dict[str, Any] = {}
    session = Session(problem, options, limits, submission, progress=tell)
    with head.judging(), session:
        check_syntax(submission)
        info = open_problem(session, backward)
        at = one_size(sizes, info)
        found["sizes"] = at
        session.open_submission()
        session.progress("one trial")
        trial = session.trial(session.options.seed, at)
        found["trial"] = trial
        if not trial.passed and trial.verdict not in _PROFILED_ALL_THE_SAME:
            raise JudgedError(trial.verdict, trial.reason)
        tell("waiting for the device")
        with _device.exclusive(session.options.device) as waited:
            found["waited_seconds"] = waited
            page = _measure(session, submission, at, counters, found)
        if keep is not None and page:
            Path(keep).write_text(page)
        if not trial.passed:
            session.notes.append(
                f"its answers are wrong ({trial.verdict}): these are the figures of a wrong kernel"
            )
            raise JudgedError(trial.verdict, f"{trial.reason}; it was profiled all the same")
        head.reason = _summary(found)
    result = ProfileResult(
        **head.fields(),
        options=session.options,
        builds=tuple(session.builds),
        notes=(*session.notes, *_notes(found)),
        **found,
    )
    return result.model_copy(update={"hints": _hints.hints(result)})


def _notes(found: Mapping[str, Any]) -> tuple[str, ...]:
    trial = found.get("trial")
    if trial is None:
        return ("nothing is known of whether its answers are right",)
    return ("one draw of the inputs was compared: run_correctness says more",) * trial.passed


def _measure(
    session: Session,
    submission: Submission,
    at: Mapping[str, int],
    counters: bool,
    found: dict[str, Any],
) -> str:
    """All figures, into `found` as they are known; returns the page of counters."""
    on_gpu = session.options.device.startswith("cuda")
    session.construct_reference(derived(session.options.seed, "profiling"), at)
    session.construct_submission()
    draw = session.draw(derived(session.options.seed, "profiled"), jitter=False)
    session.put(draw)
    session.progress("profiling")
    answer = _ask_activity(session.candidate, draw)
    own = _submit.kernel_names(session.builds, submission)
    found["activity"] = _activity(answer, own)
    found["operators"] = _operators(answer)
    if not found["activity"]:
        found["activity_absent"] = (
            "no device activity recorded" if on_gpu else "there is no device but the CPU"
        )
    session.progress("timing")
    found["times"] = times = _times(session, draw, found["activity"])
    cost = _submit.cost_of(session, draw)
    peaks = _peaks.peaks(session.options.device, _submit.judged_dtype(draw))
    analysis = _classes.analysis_of(cost["bytes"], cost["flops"], cost["source"], peaks)
    found["analysis"] = analysis
    found["roofline_light"] = light = _classes.roofline_light(analysis, peaks, times)
    counted = _counters(session, draw, counters, on_gpu)
    found["kernels"] = kernels = tuple(
        KernelProfile(counters=k, time_class=_classes.of_kernel(k)) for k in counted.kernels
    )
    found["counters_source"], found["counters_absent"] = counted.source, counted.absent
    found["counter_light"] = _classes.counter_light(counted.kernels)
    found["time_class"] = _classes.of_call(times, kernels, light, analysis)
    return counted.page


def _counters(session: Session, draw: Draw, wanted: bool, on_gpu: bool) -> _ncu.Counted:
    if not wanted:
        return _ncu.Counted(absent="they were not asked for")
    if not on_gpu:
        return _ncu.Counted(absent=f"the device is {session.options.device}, which has none")
    session.progress("reading hardware counters")
    return _ncu.count(session, draw, timeout_s=_COUNTERS_S)


class _Launch(BaseModel):
    kind: str
    name: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    registers_per_thread: int | None
    shared_bytes: int | None
    bytes: int | None
    launches: int = Field(ge=0)
    us: float = Field(ge=0, allow_inf_nan=False)


class _ActivityAnswer(Answer):
    """`operators` holds (name, count, self us, total us) of each."""

    calls: int = Field(gt=0)
    device: list[_Launch] | None
    operators: list[tuple[str, int, float, float]]


def _ask_activity(side: Side, draw: Draw) -> _ActivityAnswer:
    message = {"id": draw.id, "calls": _PROFILED_CALLS}
    reply, _ = side.ask("activity", message, step="profiling")[0]
    return read(_ActivityAnswer, reply)


def _activity(answer: _ActivityAnswer, own: frozenset[str]) -> tuple[Activity, ...]:
    found = [
        Activity(
            **{k: v for k, v in one.model_dump().items() if k not in ("launches", "us")},
            launches_per_call=one.launches / answer.calls,
            us_per_call=one.us / answer.calls,
            is_own=_submit.is_own(one.name, own) if one.kind == "kernel" else None,
        )
        for one in answer.device or ()
    ]
    return tuple(sorted(found, key=lambda a: -a.us_per_call))


def _operators(answer: _ActivityAnswer) -> tuple[Operator, ...]:
    return tuple(
        Operator(
            name=name,
            calls_per_call=count / answer.calls,
            self_us_per_call=own / answer.calls,
            total_us_per_call=total / answer.calls,
        )
        for name, count, own, total in answer.operators
    )


def _times(session: Session, draw: Draw, activity: tuple[Activity, ...]) -> Times:
    """By the judge's timer, on one draw; beside it the empty kernel, in the reference's process."""
    on_gpu = session.options.device.startswith("cuda")
    device_us = sum(a.us_per_call for a in activity)
    calls = 1
    if on_gpu:
        calls = max(1, min(_MOST_POOL_CALLS, int(_POOL_US / max(device_us, 1.0))))
    # Ranks that share a process end where one of them cannot be captured.
    wanted = "events" if session.options.world_size > 1 else "graph"
    medians: dict[str, float] = {}
    for side, of in ((session.candidate, "module"), (session.reference, "empty")):
        message = {
            "ids": [draw.id] * (calls if of == "module" else 1),
            "method": wanted,
            "min_time_us": _POOL_US,
            "floor": of == "empty",
        }
        pool = read(PoolAnswer, side.ask("pool", message, step="timing")[0][0])
        for kind in ("warm", "cold", "call") if on_gpu else ("call",):
            samples = [
                read(SampleAnswer, side.ask("sample", {"kind": kind, "of": of})[0][0]).us
                for _ in range(_SAMPLES)
            ]
            key = f"{kind}_us" if of == "module" else f"empty_{kind}_us"
            medians[key] = statistics.median(samples)
        side.ask("unpool")
        if of == "module":
            method = pool.method
    return Times(method=method, **medians)


def _summary(found: Mapping[str, Any]) -> str:
    time_class, times = found.get("time_class"), found["times"]
    if time_class is not None:
        return f"{time_class.name}: {time_class.because}"
    us = times.warm_us or times.call_us
    lacking = "counters or the GPU's datasheet" if times.warm_us else "a GPU"
    return f"a call takes {_classes.in_us(us)}; its class is not known without {lacking}"
