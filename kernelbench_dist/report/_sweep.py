"""What a report shows of a sweep: a row for each verdict, with its time where it was taken."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kernelbench_dist.harness._results import Frozen, Result, SubmitResult
from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.timing._result import Kind


class Row(Frozen):
    """One verdict. `speedup` is the reference's time over the submission's, with its interval."""

    problem: str
    submission: str
    verdict: Verdict
    reason: str
    seconds: float
    kind: Kind | None = None
    time_us: float | None = None
    reference_us: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    says: str | None = None
    """"faster", "slower" or "same\""""
    time_class: str | None = None
    launches: int | None = None
    page: str | None = None
    """the file with all of it, from the index"""

    @classmethod
    def of(cls, submission: str, problem: str, result: Result) -> Row:
        known = cls(
            problem=problem,
            submission=submission,
            verdict=result.verdict,
            reason=result.reason,
            seconds=result.seconds,
        )
        if not isinstance(result, SubmitResult) or result.timing is None:
            return known
        ratio = result.timing.ratio("submission")
        mine = result.timing["submission"].timing(ratio.kind)
        theirs = result.timing["reference"].timing(ratio.kind)
        assert mine is not None
        assert theirs is not None
        light, launches = result.speed_of_light, result.launches
        return known.model_copy(
            update={
                "kind": ratio.kind,
                "time_us": mine.median_us,
                "reference_us": theirs.median_us,
                "speedup": 1 / ratio.ratio,
                "speedup_low": 1 / ratio.high,
                "speedup_high": 1 / ratio.low,
                "says": ratio.verdict,
                "time_class": light.time_class if light else None,
                "launches": launches.kernels if launches else None,
            }
        )


def read_sweep(log: str | os.PathLike[str]) -> tuple[Row, ...]:
    """The verdicts of a sweep's log, in its order.

    Raises LogError where the file is no log of a sweep.
    """
    from kernelbench_dist.harness.sweep import results

    return tuple(Row.of(entry.submission, entry.problem, result) for entry, result in results(log))


def fast_p(rows: Sequence[Row], p: float) -> float:
    """The share of all verdicts that are PASSED with a speedup of more than p.

    What passed and was not timed counts only for p = 0.
    """
    passed = [r for r in rows if r.verdict is Verdict.PASSED]
    fast = [r for r in passed if p == 0 or (r.speedup is not None and r.speedup > p)]
    return len(fast) / len(rows)
