"""Judging one job of a sweep, wherever it has been sent."""

from __future__ import annotations

import contextlib
import tempfile
import time
import traceback
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kernelbench_dist import problems
from kernelbench_dist._version import __version__
from kernelbench_dist.harness._judge import run_correctness
from kernelbench_dist.harness._results import CorrectnessResult, Result, SubmitResult
from kernelbench_dist.harness._static import static_check
from kernelbench_dist.harness._submit import submit_kernel
from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.harness.sweep._plan import Job


def judge(job: Job) -> dict[str, Any]:
    """The whole result as plain values. What the judge itself raises is a verdict too."""
    if job.version != __version__:
        return no_verdict(job, f"kernelbench_dist is {__version__} here, and {job.version} there")
    started = time.monotonic()
    try:
        with _file(job.path, job.source) as source, _problem(job) as problem:
            data = _judge(job, source, problem).to_dict()
            return _renamed(data, job, str(source))
    except Exception as error:
        # The tools say ValueError of what they were asked, and nothing finer. Any other exception
        # shows a fault of the judge or of the machine.
        wrong_use = type(error) in (ValueError, problems.ProblemError)
        verdict = Verdict.PROBLEM_ERROR if wrong_use else Verdict.ENVIRONMENT_ERROR
        reason = str(error) if wrong_use else f"the judge raised {type(error).__name__}: {error}"
        seconds = time.monotonic() - started
        return no_verdict(job, reason, traceback.format_exc()[-8000:], seconds, verdict)


def no_verdict(
    job: Job,
    reason: str,
    detail: str = "",
    seconds: float = 0.0,
    verdict: Verdict = Verdict.ENVIRONMENT_ERROR,
) -> dict[str, Any]:
    """The result of a job that the tool gave none for."""
    kind = SubmitResult if job.tool == SubmitResult.tool else CorrectnessResult
    return kind(
        verdict=verdict,
        reason=reason,
        detail=detail,
        problem=job.problem,
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds=seconds,
    ).to_dict()


def _judge(job: Job, source: Path, problem: str | Path) -> Result:
    if job.tool == SubmitResult.tool:
        return submit_kernel(source, problem, static=job.static, **job.arguments)
    if job.static:
        checked = static_check(source, problem)
        if not checked.passed:
            return checked
    return run_correctness(source, problem, **job.arguments)


@contextlib.contextmanager
def _file(name: str, data: bytes) -> Iterator[Path]:
    """A file of the job's contents: the one that they came from, if it still holds them."""
    path = Path(name)
    with contextlib.suppress(OSError):
        if path.read_bytes() == data:
            yield path
            return
    with tempfile.TemporaryDirectory(prefix="kernelbench_dist-sweep-") as folder:
        path = Path(folder, path.name)
        path.write_bytes(data)
        yield path


@contextlib.contextmanager
def _problem(job: Job) -> Iterator[str | Path]:
    """The suite's problem of that name where it has the same contents, else a file."""
    with contextlib.suppress(problems.ProblemError, FileNotFoundError):
        if problems.find(job.problem)[1].read_bytes() == job.problem_source:
            yield job.problem
            return
    with _file(job.problem_path, job.problem_source) as path:
        yield problems.address(job.problem, path)


def _renamed(data: dict[str, Any], job: Job, source: str) -> dict[str, Any]:
    """The result with the names that the sweep was given, where files of our own were judged."""
    data["problem"] = job.problem
    if data.get("submission"):
        data["submission"]["name"] = job.name
    if data.get("replay"):
        data["replay"] = data["replay"].replace(source, job.name)
    return data
