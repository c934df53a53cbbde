"""Time submissions against the reference: processes that take turns, under one clock.

Each process times its own calls; the judge, outside of both, times every request. A submission that
reports less time than it takes is found out by the second clock; one that does its work elsewhere
than in the sample, by the time of the step before it, or by its outputs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone

import numpy as np
import torch

from kernelbench_dist.harness import _values
from kernelbench_dist.harness._answers import PoolAnswer, SampleAnswer, read
from kernelbench_dist.harness._problem import Draw, derived
from kernelbench_dist.harness._session import Session
from kernelbench_dist.harness._side import JudgedError, Side
from kernelbench_dist.harness._submission import Submission
from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.timing import BenchResult
from kernelbench_dist.timing._bench import _environment
from kernelbench_dist.timing._result import (
    KINDS,
    Kind,
    Method,
    Samples,
    assemble,
)

_MOST_POOL_CALLS = 1000
_CPU_POOL_BYTES = 32 << 20
_MOST_ROUND_US = 50_000.0  # of the reference, where a single call does not take longer
_CHECKED_ROUNDS = 4
# Two clocks agree where the judge's is at most this factor longer, as against the reference's, and
# by so much that a busy host does not explain it.
_CLOCKS_FACTOR = 1.5
_CLOCKS_MS = 2.0
_SAVED = (
    0.1  # of the reference's time; who saves less has hidden nothing worth the risk of a mistake
)
# Inputs are handed over, and then put at their places: the first is megabytes through a socket, the
# second so quick that work in it would stand out.
_REFILL = ("hand", "refill")
_LOOKS = 3  # times that the rounds are played before a clock accuses


@dataclass
class _Lane:
    """The samples of one side in one kind."""

    calls: int = 1
    samples_us: list[float] = field(default_factory=list)
    outside_us: list[float] = field(default_factory=list)
    """by the judge's clock, for the whole request"""


Candidates = dict[str, tuple[Submission, Side]]
"""what is timed beside the reference, by the names that it has in the result"""


def measure(
    session: Session, *, rounds: int, min_time_ms: float, candidates: Candidates | None = None
) -> BenchResult:
    """Time all sides, as they are constructed, on fresh inputs in every round.

    candidates: by default the session's own, as "submission".

    Raises JudgedError: CHEATING where a clock or a timed output shows it, or as a step fails. Its
    `who` is the name of the side.
    """
    if candidates is None:
        assert session.submission is not None
        candidates = {"submission": (session.submission, session.candidate)}
    try:
        return _measure(session, candidates, rounds, min_time_ms, "graph", None)
    except _NotCapturedError as error:
        _start_again(session, candidates)
        return _measure(session, candidates, rounds, min_time_ms, "events", str(error))


class _NotCapturedError(Exception):
    """A rank raised while calls of all virtual ranks were captured, and that ends them all."""


def _start_again(session: Session, candidates: Candidates) -> None:
    """All sides in fresh processes, constructed as they were."""
    session.reference.close()
    session.open_problem()
    session.construct_reference(*session.constructed_with)
    for who, (submission, side) in candidates.items():
        session.submission, session.candidate = submission, side
        with _blame(who):
            session.restart_submission()
            session.construct_submission()
        candidates[who] = submission, session.candidate


@contextmanager
def _blame(who: str) -> Iterator[None]:
    """Note whose fault it is that the judgement ends."""
    try:
        yield
    except JudgedError as error:
        error.who = error.who or who
        raise


def _measure(
    session: Session,
    candidates: Candidates,
    rounds: int,
    min_time_ms: float,
    wanted: Method,
    why: str | None,
) -> BenchResult:
    seed = session.options.seed
    on_gpu = session.options.device.startswith("cuda")
    started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    sides: dict[str, Side] = {"reference": session.reference}
    sides |= {who: side for who, (_, side) in candidates.items()}
    first = session.draw(derived(seed, "pool"), jitter=False)
    draws = [first, *_fresh(session, first, "pool", _calls(session, first, on_gpu) - 1)]
    for who, side in sides.items():
        with _blame(who):
            for draw in draws:
                if draw is not first or who != "reference":  # which has kept the first
                    session.put_to(side, draw)
    method, reason = _prepare(session, sides, [d.id for d in draws], min_time_ms, wanted)
    reason = reason or why
    kinds: tuple[Kind, ...] = KINDS if on_gpu else ("call",)
    lanes = {(who, kind): _Lane() for who in (*sides, "empty") for kind in kinds}
    refills_us: dict[tuple[str, str], list[float]] = {
        (who, step): [] for who in sides for step in _REFILL
    }
    rng = np.random.default_rng(seed % 2**32)
    checked = set(rng.choice(rounds, size=min(_CHECKED_ROUNDS, rounds), replace=False).tolist())
    checked.add(rounds - 1)
    order: list[str] = []
    # A busy host can slow one side in all rounds of a short run. Who hides time hides it in the
    # next rounds too, and cannot tell that they were added.
    for look in range(1, _LOOKS + 1):
        for i in range(rounds):
            fresh = _fresh(session, first, f"look {look} round {i}", len(draws))
            # A random order and then its reverse (A B B A), so that a steady drift cancels.
            order = [str(w) for w in rng.permutation(list(sides))] if i % 2 == 0 else order[::-1]
            for who in order:
                with _blame(who):
                    for step, us in _refill(session, sides[who], fresh).items():
                        refills_us[who, step].append(us)
            for kind in kinds:
                for who in order:
                    with _blame(who):
                        _sample(lanes[who, kind], sides[who], kind, "module")
                _sample(lanes["empty", kind], sides["reference"], kind, "empty")
            if i in checked:
                _check_results(session, candidates, fresh, int(rng.integers(len(fresh))))
        try:
            for who in candidates:
                with _blame(who):
                    _check_clocks(lanes, kinds, who)
                    _check_refills(lanes, refills_us, kinds, who)
            break
        except JudgedError:
            if look == _LOOKS:
                raise
    for who, side in sides.items():
        with _blame(who):
            side.ask("unpool", step="timing")

    def samples(who: str) -> dict[Kind, Samples]:
        return {k: (lanes[who, k].calls, lanes[who, k].samples_us) for k in kinds}

    return assemble(
        [(who, samples(who)) for who in sides],
        ("(empty kernel)" if on_gpu else "(empty function)", samples("empty")),
        environment=_environment(torch.device(session.options.device), started_at),
        method=method,
        reason=reason,
        rounds=rounds * look,
        seed=seed % 2**32,
        baseline="reference",
    )


def _calls(session: Session, draw: Draw, on_gpu: bool) -> int:
    """How many calls' inputs fit a pool that stays in the cache, and take no more than a moment."""
    pool = {"ids": [draw.id], "method": "wall", "min_time_us": 1.0, "floor": False}
    session.reference.ask("pool", pool)
    once, _ = session.reference.ask("sample", {"kind": "call", "of": "module"})[0]
    session.reference.ask("unpool")
    held = _CPU_POOL_BYTES
    if on_gpu:
        held = torch.cuda.get_device_properties(session.options.device).L2_cache_size // 4
    most = min(_MOST_POOL_CALLS, int(_MOST_ROUND_US / once["us"]))
    return max(1, min(most, held // max(1, 2 * draw.nbytes())))


def _fresh(session: Session, like: Draw, what: str, count: int) -> list[Draw]:
    """So many new draws of the shapes of one that the reference keeps; it keeps none of these."""
    seeds = [derived(session.options.seed, f"{what} call {k}") for k in range(count)]
    draws = session.draw_many(like, seeds, jitter=False)
    if draws is None:
        raise JudgedError(
            Verdict.PROBLEM_ERROR,
            "in the problem, get_inputs() hardly ever gives the same shapes twice, so that nothing "
            "can be timed: let it take jitter=False",
        )
    return draws


def _prepare(
    session: Session,
    sides: Mapping[str, Side],
    ids: list[int],
    min_time_ms: float,
    wanted: Method,
) -> tuple[Method, str | None]:
    """A pool on both sides, timed by a method that suits both; and why it is not "graph"."""
    reasons: list[str] = []
    order: tuple[Method, ...] = ("graph", "events", "wall")
    for _ in order:
        methods: list[Method] = []
        for who, side in sides.items():
            message = {
                "ids": ids,
                "method": wanted,
                "min_time_us": 1e3 * min_time_ms,
                "floor": who == "reference",  # which is to be believed
            }
            try:
                with _blame(who):
                    replies = side.ask("pool", message, step="timing")
            except JudgedError as error:
                options = session.options
                on_gpu = options.device.startswith("cuda")
                if wanted == "graph" and on_gpu and options.on_virtual_ranks:
                    raise _NotCapturedError(f"{who}: {error.reason}") from error
                raise
            for reply, _ in replies:
                answer = read(PoolAnswer, reply)
                methods.append(answer.method)
                if answer.reason:
                    reasons.append(f"{who}: {answer.reason}")
        needed: Method = max(methods, key=order.index)
        if all(m == needed for m in methods):
            return needed, "; ".join(dict.fromkeys(reasons)) or None
        wanted = needed
    raise JudgedError(Verdict.RUNTIME_ERROR, "timing: it cannot be timed as the reference is")


def _refill(session: Session, side: Side, draws: list[Draw]) -> dict[str, float]:
    """Give a side's pool new inputs; the microseconds that each step of it took."""
    ranks = range(session.info.world_size)
    tensors = [[t for draw in draws for t in draw.tensors[rank]] for rank in ranks]
    took: dict[str, float] = {}
    for step in _REFILL:
        start = time.perf_counter_ns()
        side.ask(step, tensors=tensors if step == "hand" else None, step="timing")
        took[step] = (time.perf_counter_ns() - start) / 1e3
    return took


def _sample(lane: _Lane, side: Side, kind: Kind, of: str) -> None:
    start = time.perf_counter_ns()
    replies = side.ask("sample", {"kind": kind, "of": of}, step="timing")
    lane.outside_us.append((time.perf_counter_ns() - start) / 1e3)
    answers = [read(SampleAnswer, reply) for reply, _ in replies]
    slowest = max(answers, key=lambda answer: answer.us)  # of the ranks
    lane.calls = slowest.calls
    lane.samples_us.append(slowest.us)


def _check_results(session: Session, candidates: Candidates, draws: list[Draw], index: int) -> None:
    """The outputs of one timed call, which nobody could foretell, must be right too."""
    session.put_reference(draws[index])
    expected = session.expect(draws[index])
    session.reference.ask("drop", {"id": draws[index].id})
    for who, (_, side) in candidates.items():
        with _blame(who):
            _check_result(side, expected, index)


def _check_result(side: Side, expected: list[_values.Expected], index: int) -> None:
    most = max(e.most_bytes() for e in expected)
    replies = side.ask(
        "results", {"index": index, "most_bytes": most}, most_bytes=most, step="timing"
    )
    for rank, ((_, got), wanted) in enumerate(zip(replies, expected, strict=True)):
        said = "other shapes or dtypes"
        if wanted.fits(got):
            _, fault = _values.compare(wanted, got, rank)
            said = fault.reason if fault else ""
        if said:
            raise JudgedError(
                Verdict.CHEATING,
                f"its answers were right while they were judged, and wrong while timed: {said}",
            )


def _check_clocks(
    lanes: Mapping[tuple[str, Kind], _Lane], kinds: tuple[Kind, ...], candidate: str
) -> None:
    """The judge's clock must agree with the time that the candidate's process reports."""
    for kind in kinds:
        if kind == "cold":
            continue  # most of that request is flushing
        gaps = {}
        for who in ("reference", candidate):
            lane = lanes[who, kind]
            claimed = np.asarray(lane.samples_us) * lane.calls
            # Whoever shifts its median must lie in half of the rounds. A busy host disturbs
            # both sides, so that the judge leans to the submission's side in both.
            share = 60 if who == "reference" else 40
            gaps[who] = float(np.percentile(np.asarray(lane.outside_us) - claimed, share))
            total = float(np.median(claimed))
            passed = float(np.median(lane.outside_us))
            if total > _CLOCKS_FACTOR * passed:
                raise JudgedError(
                    Verdict.CHEATING,
                    f"it reports {total / 1e3:.3g} ms for calls ({kind}), and only "
                    f"{passed / 1e3:.3g} ms passed by the judge's clock",
                )
        hidden_us = gaps[candidate] - gaps["reference"]
        if hidden_us > 1e3 * _CLOCKS_MS and hidden_us > (_CLOCKS_FACTOR - 1) * total:
            raise JudgedError(
                Verdict.CHEATING,
                f"it reports {total / 1e3:.3g} ms for calls ({kind}) that took "
                f"{hidden_us / 1e3:.3g} ms more by the judge's clock",
            )


def _check_refills(
    lanes: Mapping[tuple[str, Kind], _Lane],
    refills_us: Mapping[tuple[str, str], list[float]],
    kinds: tuple[Kind, ...],
    candidate: str,
) -> None:
    """Work must not be done while the inputs are handed over, before the clock starts.

    Accused is who is faster, and takes so much longer over the inputs that it can be why: at its
    quickest, against what is usual for the reference, for the host has its moods.
    """
    kind = kinds[0]
    mine, theirs = (np.asarray(lanes[who, kind].samples_us) for who in (candidate, "reference"))
    saved = float(np.percentile(theirs, 40) - np.percentile(mine, 60))
    if saved < _SAVED * float(np.median(theirs)):
        return
    calls = lanes[candidate, "call"].calls
    for step in _REFILL:
        usual = float(np.median(refills_us["reference", step]))
        extra = min(refills_us[candidate, step]) - usual
        if extra > max(1e3 * _CLOCKS_MS, 0.5 * usual, 0.25 * saved * calls):
            raise JudgedError(
                Verdict.CHEATING,
                f"it takes {extra / 1e3:.3g} ms longer than the reference to take its inputs, "
                "which is outside of the timed window, and saves "
                f"{saved * calls / 1e3:.3g} ms inside",
            )
