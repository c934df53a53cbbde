"""`sweep`: judge many submissions, and go on where another sweep with the same log ended."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import torch

from kernelbench_dist.harness._judge import Sizes, make_limits, make_options
from kernelbench_dist.harness._ranks import RanksKind
from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.harness.sweep._log import Log
from kernelbench_dist.harness.sweep._plan import Job, PathOrPaths, Plan, find_problems, make_plan
from kernelbench_dist.harness.sweep._pool import LocalPool, Pool
from kernelbench_dist.harness.sweep._progress import Shown
from kernelbench_dist.harness.sweep._ray import RayPool
from kernelbench_dist.harness.sweep._result import NotJudged, SweepResult

_MOST_JOBS = 8
_EXECUTORS = ("local", "ray")


def sweep(
    problems: PathOrPaths,
    submissions: PathOrPaths,
    *,
    log: str | os.PathLike[str],
    jobs: int | None = None,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    sizes: Sizes = None,
    trials: int = 5,
    seed: int | None = None,
    static: bool = True,
    timing: bool = True,
    ranks: RanksKind = "virtual",
    timeout_s: float = 60.0,
    executor: str = "local",
    retries: int = 2,
    progress: bool | None = None,
) -> SweepResult:
    """Judge every submission for its problem, several at once, and log each verdict.

    A submission belongs to the problem that its top-level `PROBLEM = "level2/47"` names; else to
    the one that its folders name, as in submissions/level2/47/a.py; else, if there is one problem
    only, to that. A file that belongs to none is in the result's `not_judged`.

    A verdict is on the disk before it counts. A sweep that ended early, even by SIGKILL, goes on
    when it is called again with the same log: what has a verdict there is not judged again, as
    long as the submission, the problem, the options and this package are the same. Only
    ENVIRONMENT_ERROR is no verdict: it is tried again, also by the next sweep.

    Args:
        problems: a folder, or one or several files or names ("level2/47").
        submissions: a folder, or one or several files.
        log: JSON lines, made if there is no such file. One sweep at a time may write to it.
        jobs: how many to judge at once. By default one for two CPUs, 8 at most; with Ray, as many
            as it has CPUs for. Builds and correctness run at the same time; time is measured one
            at a time on a device. On a CPU, what the other jobs do disturbs that.
        device, dtype, sizes, trials, seed, ranks, timeout_s: as for `run_correctness`.
        static: whether the static check may reject a submission.
        timing: judge by `submit_kernel`; False leaves out time, memory and launches.
        executor: "local", processes on this machine; "ray", a Ray cluster (the running one, or one
            made for this), whose machines have the same version of this package.
        retries: how often an ENVIRONMENT_ERROR is tried again in this run.
        progress: False shows nothing; else a bar where stderr is a terminal, lines where it is not.

    Raises:
        FileNotFoundError, ProblemError: no such file or problem.
        LogError: the log is another's: another sweep's that still runs, or no log of a sweep.
        ValueError: an argument's value, named; nothing to judge.
        RuntimeError: executor="ray" without Ray, or without the GPU that it needs.
        KeyboardInterrupt: as Ctrl-C asked; its text says how far it came and how to go on.
    """
    _check(jobs, executor, retries, sizes, device)
    make_limits(timeout_s, 1.0, None)
    options = make_options(
        find_problems(problems)[0].path,
        dtype=dtype,
        sizes=sizes,
        trials=trials,
        seed=seed,
        device=device,
        ranks=ranks,
    )
    arguments: dict[str, Any] = {
        "device": options.device,
        "dtype": options.dtype,
        "sizes": _plain(sizes),
        "trials": trials,
        "seed": seed,
        "ranks": ranks,
        "timeout_s": timeout_s,
    }
    tool = "submit_kernel" if timing else "run_correctness"
    plan = make_plan(problems, submissions, tool=tool, static=static, arguments=arguments)
    started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    started = time.monotonic()
    with Log(log) as opened:
        left = [job for key, job in plan.jobs.items() if key not in opened.finished]
        before = len(plan.jobs) - len(left)
        failed: list[NotJudged] = []
        with Shown(len(plan.jobs), before, show=progress is not False) as shown:
            if before:
                shown.note(f"{before} of {len(plan.jobs)} have their verdict in {log} already")
            if left:
                limit_s = _limit_s(timeout_s, trials, sizes)
                pool = _pool(executor, jobs, options.device, limit_s, timing=timing)
                try:
                    failed = _drive(pool, left, opened, retries, shown)
                except KeyboardInterrupt:
                    raise KeyboardInterrupt(
                        f"{len(opened.keys_written() & plan.jobs.keys())} of {len(plan.jobs)} "
                        f"have their verdict in {log}; the same call again goes on from there"
                    ) from None
                finally:
                    pool.close()
        return SweepResult(
            log=os.fspath(log),
            entries=_entries(plan, opened),
            not_judged=(*plan.not_judged, *failed),
            judged_before=before,
            started_at=started_at,
            seconds=time.monotonic() - started,
        )


def _drive(
    pool: Pool, jobs: Sequence[Job], log: Log, retries: int, shown: Shown
) -> list[NotJudged]:
    """Run the jobs to their end; returns those that the environment left without a verdict."""
    waiting = deque(jobs)
    attempts: Counter[str] = Counter()
    failed: list[NotJudged] = []
    while waiting or pool.is_busy():
        while waiting and pool.has_room():
            pool.submit(waiting.popleft())
        for job, result in pool.finished():
            if result["verdict"] != Verdict.ENVIRONMENT_ERROR:
                entry = log.add_verdict(job.key, job.name, job.problem, result)
                shown.verdict(entry.verdict, job.problem, job.name, entry.seconds)
                continue
            log.add_attempt(job.key, job.name, job.problem, result)
            attempts[job.key] += 1
            again = attempts[job.key] <= retries
            shown.attempt(job.problem, job.name, result["reason"], again=again)
            if again:
                waiting.append(job)
                continue
            failed.append(
                NotJudged(
                    submission=job.name,
                    problem=job.problem,
                    reason=result["reason"],
                    attempts=attempts[job.key],
                )
            )
    return failed


def _entries(plan: Plan, log: Log) -> tuple[Any, ...]:
    """In the order of the plan, by the names that the files have now."""
    return tuple(
        log.finished[key].model_copy(
            update={"submission": job.name, "copies": tuple(plan.copies.get(key, ()))}
        )
        for key, job in plan.jobs.items()
        if key in log.finished
    )


def _pool(executor: str, jobs: int | None, device: str, limit_s: float, *, timing: bool) -> Pool:
    on_gpu = device.startswith("cuda")
    if executor == "ray":
        return RayPool(jobs, limit_s, on_gpu=on_gpu)
    cpus = len(os.sched_getaffinity(0))
    slots = jobs or min(max(1, cpus // 2), _MOST_JOBS)
    # Where times are taken on the CPU, a call must have the threads that it has elsewhere.
    shares = "OMP_NUM_THREADS" not in os.environ and not (timing and not on_gpu)
    return LocalPool(
        slots, limit_s, {"OMP_NUM_THREADS": str(max(1, cpus // slots))} if shares else {}
    )


def _limit_s(timeout_s: float, trials: int, sizes: Sizes) -> float:
    """More seconds than a judge whose steps all end in time can take: builds, calls, waiting."""
    several = len(sizes) if isinstance(sizes, (list, tuple)) else 8 if sizes == "all" else 1
    return 1200 + timeout_s * (100 + 10 * trials * several)


def _check(jobs: int | None, executor: str, retries: int, sizes: Sizes, device: str | None) -> None:
    if jobs is not None and (type(jobs) is not int or jobs < 1):
        raise ValueError(f"jobs is {jobs!r}; an int of 1 or more is accepted")
    if executor not in _EXECUTORS:
        raise ValueError(f"executor is {executor!r}; {' and '.join(_EXECUTORS)} are accepted")
    if type(retries) is not int or retries < 0:
        raise ValueError(f"retries is {retries!r}; an int of 0 or more is accepted")
    if executor == "ray" and device and device.startswith("cuda:"):
        raise ValueError(f"device is {device!r}; with executor='ray', which picks, give 'cuda'")


def _plain(sizes: Sizes) -> Any:
    """The sizes as JSON has them."""
    if sizes is None or isinstance(sizes, str):
        return sizes
    if isinstance(sizes, Mapping):
        return dict(sizes)
    return [one if isinstance(one, str) else dict(one) for one in sizes]
