"""How a sweep runs its jobs, on processes and on Ray, and what it shows."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from sweep_cases import HONEST, PROBLEM, Write, job, lines, plan, verdict

from kernelbench_dist.harness import Verdict
from kernelbench_dist.harness.sweep import (
    NotJudged,
    SweepEntry,
    SweepResult,
    _judge,
    _pool,
    _ray,
    _run,
)
from kernelbench_dist.harness.sweep._log import Log
from kernelbench_dist.harness.sweep._plan import Job
from kernelbench_dist.harness.sweep._progress import Shown


class Scripted:
    """A pool whose jobs end as a script says: verdicts by key, one an attempt."""

    def __init__(self, script: dict[str, list[Verdict]], slots: int = 2) -> None:
        self.script, self.slots = script, slots
        self.running: list[Job] = []
        self.most = 0

    def has_room(self) -> bool:
        return len(self.running) < self.slots

    def is_busy(self) -> bool:
        return bool(self.running)

    def submit(self, job: Job) -> None:
        self.running.append(job)
        self.most = max(self.most, len(self.running))

    def finished(self) -> list[tuple[Job, dict[str, Any]]]:
        one = self.running.pop()
        return [(one, verdict(one.key, self.script[one.key].pop(0)))]

    def close(self) -> None: ...


def test_only_environment_errors_are_tried_again(tmp_path: Path) -> None:
    broken = Verdict.ENVIRONMENT_ERROR
    pool = Scripted(
        {
            "a": [Verdict.PASSED],
            "b": [broken, Verdict.TIMEOUT],
            "c": [broken] * 3,
            "d": [Verdict.PROBLEM_ERROR],
        }
    )
    path = tmp_path / "log.jsonl"
    with Log(path) as log, Shown(4, 0, show=False) as shown:
        failed = _run._drive(pool, [job(key) for key in "abcd"], log, 2, shown)
        assert {k: e.verdict for k, e in log.finished.items()} == {
            "a": Verdict.PASSED,
            "b": Verdict.TIMEOUT,
            "d": Verdict.PROBLEM_ERROR,
        }
    assert pool.most == 2
    assert [(one.submission, one.attempts) for one in failed] == [("c.py", 3)]
    tried = Counter((one["line"], one["key"]) for one in lines(path) if "key" in one)
    assert tried == Counter(
        {("verdict", k): 1 for k in "abd"} | {("attempt", "b"): 1, ("attempt", "c"): 3}
    )


JUDGE = """\
import json, os, signal, sys, time
from multiprocessing.connection import Connection

connection = Connection(int(sys.argv[1]))
while True:
    job = connection.recv_bytes()
    what = next(w for w in (b"answers", b"exits", b"is_killed", b"hangs") if w + b".py" in job)
    if what == b"exits":
        print("said before", flush=True)
        os._exit(3)
    if what == b"is_killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == b"hangs":
        time.sleep(1000)
    connection.send_bytes(json.dumps({"pid": os.getpid()}).encode())
"""


@pytest.fixture
def pool(
    write: Write, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[_pool.LocalPool]:
    """Two slots for a program that does what its jobs are called, and does not import torch."""
    monkeypatch.syspath_prepend(write(JUDGE, "scripted_judge.py").parent)
    monkeypatch.setattr(_pool, "_PROGRAM", "scripted_judge")
    pool = _pool.LocalPool(2, getattr(request, "param", 60.0), {})
    yield pool
    pool.close()


def run(pool: _pool.Pool, *keys: str) -> dict[str, dict[str, Any]]:
    waiting, done = [job(key) for key in keys], {}
    while waiting or pool.is_busy():
        while waiting and pool.has_room():
            pool.submit(waiting.pop(0))
        done |= {one.key: result for one, result in pool.finished()}
    return done


def test_a_judge_that_dies_costs_an_attempt_and_is_replaced(pool: _pool.LocalPool) -> None:
    before = run(pool, "answers")["answers"]["pid"]
    done = run(pool, "exits", "is_killed", "answers")
    assert done["exits"]["verdict"] == "ENVIRONMENT_ERROR"
    assert done["exits"]["reason"] == "the judge's process ended with exit code 3"
    assert done["exits"]["detail"] == "said before\n"
    assert done["is_killed"]["reason"] == "the judge's process was killed by SIGKILL"
    assert done["answers"]["pid"] != before


def test_a_judge_that_died_idle_costs_nothing(pool: _pool.LocalPool) -> None:
    before = run(pool, "answers")["answers"]["pid"]
    os.kill(before, signal.SIGKILL)
    os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
    assert run(pool, "answers")["answers"]["pid"] not in (None, before)


@pytest.mark.parametrize("pool", [0.5], indirect=True)
def test_a_judge_that_hangs_is_killed(pool: _pool.LocalPool) -> None:
    done = run(pool, "hangs", "answers")
    assert done["hangs"]["verdict"] == "ENVIRONMENT_ERROR"
    assert done["hangs"]["reason"] == "the judge did not finish within 0 s"
    assert done["answers"]["pid"]


def test_closing_ends_all_at_once(pool: _pool.LocalPool) -> None:
    before = psutil.Process().children()  # a supervisor that another test has started, say
    pool.submit(job("hangs"))
    pool.submit(job("hangs"))
    children = [child for child in psutil.Process().children() if child not in before]
    assert len(children) >= 2
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 5
    assert not any(child.is_running() for child in children)


def test_a_fault_of_the_judge_is_no_verdict_on_the_submission(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = plan(write(PROBLEM), write(HONEST, "a.py")).jobs.values()
    for error, expected in [
        (ValueError("sizes 'tiny'"), ("PROBLEM_ERROR", "sizes 'tiny'")),
        (KeyError("x"), ("ENVIRONMENT_ERROR", "the judge raised KeyError: 'x'")),
        (UnicodeError("y"), ("ENVIRONMENT_ERROR", "the judge raised UnicodeError: y")),
    ]:

        def fail(*_: Any, error: Exception = error, **__: Any) -> Any:
            raise error

        monkeypatch.setattr(_judge, "run_correctness", fail)
        result = _judge.judge(one)
        assert (result["verdict"], result["reason"]) == expected
    other = _judge.judge(replace(one, version="0"))
    assert other["verdict"] == "ENVIRONMENT_ERROR"
    assert "0 there" in other["reason"]


def test_what_was_planned_is_judged_whatever_became_of_the_files(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, submission = write(PROBLEM), write(HONEST, "s/a.py")
    (one,) = plan(problem, submission).jobs.values()
    seen: list[tuple[str, str]] = []

    def note(source: Path, problem: str | Path, **_: Any) -> Any:
        seen.append((source.read_text(), Path(problem).read_text()))
        raise KeyError

    monkeypatch.setattr(_judge, "run_correctness", note)
    _judge.judge(one)
    submission.unlink()
    write("# another\n")
    _judge.judge(one)
    assert seen == [(HONEST, PROBLEM)] * 2


# Ray


class FakeRay(types.ModuleType):
    """As much of Ray as is used; a task runs when it is waited for. A key "lost" is lost."""

    class exceptions:  # noqa: N801
        class RayError(Exception):
            pass

    def __init__(self, gpus: int) -> None:
        super().__init__("ray")
        self.gpus, self.running = gpus, False
        self.options: dict[str, Any] = {}
        self.cancelled: list[Any] = []

    def is_initialized(self) -> bool:
        return self.running

    def init(self, **_: Any) -> None:
        self.running = True

    def shutdown(self) -> None:
        self.running = False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0} | ({"GPU": float(self.gpus)} if self.gpus else {})

    def remote(self, **options: Any) -> Any:
        self.options = options
        # An object like Ray's: hashable, and not the result.
        return lambda _: types.SimpleNamespace(remote=lambda job, limit_s: (job, limit_s))

    def wait(self, tasks: list[Any], *, num_returns: int, timeout: float) -> Any:
        return tasks[:num_returns], tasks[num_returns:]

    def get(self, task: Any) -> dict[str, Any]:
        if task[0].key == "lost":
            raise self.exceptions.RayError("the node died\nand more")
        return verdict(task[0].key)

    def cancel(self, task: Any, *, force: bool) -> None:
        self.cancelled.append(task)


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    fake = FakeRay(gpus=0)
    monkeypatch.setitem(sys.modules, "ray", fake)
    # The jobs hold dicts, so that they do not hash; Ray's references to tasks do.
    monkeypatch.setattr(Job, "__hash__", lambda self: hash(self.key))
    return fake


def test_ray_runs_the_jobs_and_a_lost_task_is_an_attempt(fake_ray: FakeRay) -> None:
    pool = _ray.RayPool(2, 9.0, on_gpu=False)
    assert fake_ray.options == {"num_cpus": 1, "num_gpus": 0, "max_retries": 0}
    done = run(pool, "a", "lost", "b")
    assert {key: result["verdict"] for key, result in done.items()} == {
        "a": "PASSED",
        "lost": "ENVIRONMENT_ERROR",
        "b": "PASSED",
    }
    assert done["lost"]["reason"] == "Ray lost the task (RayError): the node died"
    pool.submit(job("c"))
    pool.submit(job("d"))
    assert not pool.has_room()
    pool.close()
    assert [task[0].key for task in fake_ray.cancelled] == ["c", "d"]
    assert not fake_ray.running


def test_ray_without_a_gpu_is_an_error_and_not_a_wait(fake_ray: FakeRay) -> None:
    with pytest.raises(RuntimeError, match="has no GPU"):
        _ray.RayPool(None, 9.0, on_gpu=True)
    assert not fake_ray.running
    fake_ray.gpus, fake_ray.running = 1, True
    pool = _ray.RayPool(None, 9.0, on_gpu=True)
    assert fake_ray.options["num_gpus"] == 1
    pool.close()
    assert fake_ray.running  # it was there before


def test_a_missing_ray_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RuntimeError, match=r"pip install 'kernelbench-dist\[ray\]'"):
        _ray.RayPool(None, 9.0, on_gpu=False)


# What is shown


def test_a_result_prints_as_tables_and_goes_through_json() -> None:
    def entry(key: str, problem: str, verdict: Verdict, seconds: float) -> SweepEntry:
        return SweepEntry(
            key=key,
            submission=f"s/{key}[x].py",
            problem=problem,
            verdict=verdict,
            reason="r",
            seconds=seconds,
        )

    entries = (
        entry("a", "level2/47_virtual_all_gather", Verdict.PASSED, 3.0),
        entry("b", "level2/47_virtual_all_gather", Verdict.TIMEOUT, 61.25),
        entry("c", "level1/3_sum", Verdict.PASSED, 2.0),
    )
    left = NotJudged(submission="s/d.py", reason="no GPU", problem="level1/3_sum", attempts=3)
    result = SweepResult(
        log="log.jsonl",
        entries=entries,
        not_judged=(left,),
        judged_before=1,
        started_at="2026-01-01T00:00:00+00:00",
        seconds=70.0,
    )
    rows = [line.split() for line in str(result).splitlines()]
    assert ["3", "judged", "(1", "of", "them", "before),", "1", "not", "judged,", "70", "s"] in rows
    assert ["problem", "PASSED", "TIMEOUT"] in rows
    assert ["level1/3", "1"] in rows
    assert ["level2/47", "1", "1"] in rows
    assert ["all", "2", "1"] in rows
    assert ["61.2", "TIMEOUT", "level2/47", "s/b[x].py"] in rows
    assert ["s/d.py", "level1/3", "no", "GPU"] in rows
    assert SweepResult.from_dict(json.loads(result.to_json())) == result
    assert not result.passed


@pytest.mark.parametrize(
    ("verdicts", "left", "code"),
    [
        ([Verdict.PASSED], [], 0),
        ([Verdict.PASSED, Verdict.TIMEOUT], [], 1),
        ([Verdict.TIMEOUT], [0], 2),
        ([Verdict.PROBLEM_ERROR, Verdict.TIMEOUT], [], 2),
        ([Verdict.PASSED], [0, 3], 3),
    ],
)
def test_the_exit_code_is_that_of_the_worst(
    verdicts: list[Verdict], left: list[int], code: int
) -> None:
    result = SweepResult(
        log="log",
        entries=tuple(
            SweepEntry(key=str(i), submission="s", problem="p", verdict=v, reason="r", seconds=1.0)
            for i, v in enumerate(verdicts)
        ),
        not_judged=tuple(NotJudged(submission="s", reason="r", attempts=n) for n in left),
        judged_before=0,
        started_at="now",
        seconds=1.0,
    )
    assert result.exit_code == code


def test_in_a_pipe_a_line_is_shown_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    with Shown(200, 11, show=True) as shown:
        shown.verdict(Verdict.PASSED, "level2/47_virtual", "subs/name.py", 3.14)
        shown.attempt("level2/47_virtual", "subs/b.py", "no GPU", again=True)
    assert capsys.readouterr().err.splitlines() == [
        "[12/200] PASSED level2/47 name.py 3.1 s",
        "not judged: level2/47 b.py: no GPU; it will be tried again",
    ]
