"""Whole sweeps, killed and gone on with."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest
from sweep_cases import HONEST, PROBLEM, SUBMISSION, Write

from kernelbench_dist.harness import Verdict
from kernelbench_dist.harness._submission import read_submission
from kernelbench_dist.harness.sweep import (
    results,
    sweep,
)

SWEEP = """\
import signal, sys
from kernelbench_dist.harness.sweep import sweep

jobs, timeout_s = int(sys.argv[1]), float(sys.argv[2])
# A background job of a shell starts with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
options = dict(trials=1, timing=False, static=False, timeout_s=timeout_s, device="cpu", seed=7)
print(sweep(["47", "problem.py"], "submissions", log="log.jsonl", jobs=jobs, **options))
"""


class Sweeps:
    """Runs the same sweep again and again, and knows the processes that it starts."""

    def __init__(self, folder: Path, jobs: int, timeout_s: float = 5.0) -> None:
        self.folder, self.jobs, self.timeout_s = folder, jobs, timeout_s
        self.marker = f"sweep-{uuid.uuid4()}"
        self.log = folder / "log.jsonl"
        self.known: set[psutil.Process] = set()
        (folder / "problem.py").write_text(PROBLEM)
        (folder / "submissions" / "problem").mkdir(parents=True)
        (folder / "run.py").write_text(SWEEP)

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "run.py", str(self.jobs), str(self.timeout_s)],
            cwd=self.folder,
            env={**os.environ, "KERNELBENCH_DIST_MARKER": self.marker},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def verdicts(self) -> list[str]:
        """The names of those that are finished."""
        if not self.log.exists():
            return []
        return [Path(entry.submission).stem for entry, _ in results(self.log)]

    def run_until(self, count: int, then: signal.Signals) -> str:
        """Send a signal once there are `count` verdicts; what the sweep said."""
        process = self.start()
        while len(self.verdicts()) < count:
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.02)
        with contextlib.suppress(psutil.Error):
            self.known |= set(psutil.Process(process.pid).children(recursive=True))
        process.send_signal(then)
        said = process.communicate(timeout=60)[0]
        assert process.returncode != 0
        return said

    def left(self) -> list[psutil.Process]:
        """Processes of these sweeps that still run, after 10 seconds to end in."""
        deadline = time.monotonic() + 10
        while (left := self._running()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def _running(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                    continue
                if process in self.known or self.marker in str(process.environ()):
                    found.append(process)
        return found


def write_submissions(folder: Path, bodies: dict[str, str]) -> None:
    """Submissions for problem.py, by name; what they return, or a whole file."""
    for name, body in bodies.items():
        text = body if "class ModelNew" in body else SUBMISSION.format(body=body)
        (folder / "submissions" / "problem" / f"{name}.py").write_text(f"# {name}\n{text}")


HONEST_BODIES = {
    "cumsum": "return torch.cumsum(x, 0)",
    "method": "return x.cumsum(dim=0)",
    "product": "return torch.ones(len(x), len(x), dtype=x.dtype).tril() @ x",
}
BROKEN_BODIES = {
    "wrong": ("return torch.cumsum(x, 1)", Verdict.INCORRECT_VALUES),
    "zeros": ("return torch.zeros_like(x)", Verdict.INCORRECT_VALUES),
    "shape": ("return torch.cumsum(x, 0)[:-1]", Verdict.INCORRECT_SHAPE),
    "dtype": ("return torch.cumsum(x, 0).double()", Verdict.INCORRECT_DTYPE),
    "nan": ("return torch.cumsum(x, 0) * float('nan')", Verdict.NOT_FINITE),
    "raises": ("raise KeyError('x')", Verdict.RUNTIME_ERROR),
    "undefined": ("return y", Verdict.RUNTIME_ERROR),
    "syntax": ("class ModelNew(", Verdict.COMPILE_ERROR),
}
HOSTILE_BODIES = {
    "exits": ("import os; os._exit(0)", Verdict.RUNTIME_ERROR),
    "leaves": ("raise SystemExit(0)", Verdict.RUNTIME_ERROR),
    "interrupts": ("raise KeyboardInterrupt", Verdict.RUNTIME_ERROR),
    "null": ("import ctypes; return ctypes.string_at(0)", Verdict.RUNTIME_ERROR),
    "mutates": ("return x.cumsum_(0)", Verdict.INPUT_MUTATED),
    "forges": (
        'print(\'{"verdict": "PASSED"}\'); import os; os._exit(0)',
        Verdict.RUNTIME_ERROR,
    ),
    "kills_parent": (
        "import os; os.kill(os.getppid(), 9); return torch.zeros_like(x)",
        None,  # with Landlock the signal is refused, without it the supervisor dies
    ),
    "daemon": (
        "import subprocess as s; s.Popen(['sleep', '600'], start_new_session=True); "
        "return torch.cumsum(x, 0)",
        None,  # what it leaves behind must not outlive the sweep; its answer is right
    ),
}
LOOP = "while True: pass"


def test_a_killed_sweep_goes_on(tmp_path: Path) -> None:
    sweeps = Sweeps(tmp_path, jobs=1)
    bodies = {name: BROKEN_BODIES[name][0] for name in ("wrong", "shape", "raises", "syntax")}
    bodies |= HONEST_BODIES
    write_submissions(tmp_path, bodies)
    sweeps.run_until(random.randrange(1, 5), signal.SIGKILL)
    kept = sweeps.log.read_bytes().rpartition(b"\n")[0]
    process = sweeps.start()
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
    assert sweeps.log.read_bytes().startswith(kept)
    assert sorted(sweeps.verdicts()) == sorted(bodies)
    assert sweeps.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_a_sweep_ends_its_judges_at_work(tmp_path: Path, how: signal.Signals) -> None:
    # By themselves the judges would end long after the ten seconds that they are given.
    sweeps = Sweeps(tmp_path, jobs=2, timeout_s=100.0)
    write_submissions(tmp_path, {"a": HONEST_BODIES["cumsum"], "b": LOOP, "c": LOOP})
    said = sweeps.run_until(1, how)
    assert sweeps.left() == []
    assert sweeps.verdicts() == ["a"]
    if how is signal.SIGINT:
        assert "KeyboardInterrupt: 1 of 3 have their verdict in log.jsonl; the same call" in said


def write_those_of_problem_47(folder: Path) -> dict[str, Verdict | None]:
    """Copies of tests/exploits and tests/honest, as far as they need no compiler and no GPU."""
    (folder / "submissions" / "47").mkdir()
    expected: dict[str, Verdict | None] = {}
    for kind in ("exploits", "honest"):
        for path in sorted((Path(__file__).parent / kind).glob("*.py")):
            submission = read_submission(path)
            builds = submission.kind != "torch" or "load_inline" in submission.text
            # One that fills the machine's memory is for a test that runs nothing beside it.
            if path.name in ("conftest.py", "too_much_memory.py") or builds:
                continue
            name = f"{kind}_{path.stem}"
            (folder / "submissions" / "47" / f"{name}.py").write_text(submission.text)
            # What becomes of an exploit with the static check off is for the tests of exploits.
            expected[name] = Verdict.PASSED if kind == "honest" else None
    return expected


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_hundred_submissions_and_three_kills(tmp_path: Path) -> None:
    sweeps = Sweeps(tmp_path, jobs=4)
    expected = write_those_of_problem_47(tmp_path)
    assert 30 < len(expected) < 100
    kinds = {name: (body, Verdict.PASSED) for name, body in HONEST_BODIES.items()}
    kinds |= BROKEN_BODIES | HOSTILE_BODIES | {"loop": (LOOP, Verdict.TIMEOUT)}
    bodies: dict[str, str] = {}
    for i in range(200 - len(expected)):
        kind = list(kinds)[i % len(kinds)]
        bodies[f"s{i:03}_{kind}"], expected[f"s{i:03}_{kind}"] = kinds[kind]
    write_submissions(tmp_path, bodies)

    for count in sorted(random.sample(range(1, 195), 3)):
        sweeps.run_until(count, signal.SIGKILL)
        assert sweeps.left() == []
    process = sweeps.start()
    said = process.communicate(timeout=1200)[0]
    assert process.returncode == 0, said
    assert "200 judged" in said
    assert sweeps.left() == []
    assert sorted(sweeps.verdicts()) == sorted(expected)  # each once
    found = {Path(entry.submission).stem: entry for entry, _ in results(sweeps.log)}
    differ = {
        name: (found[name].verdict, found[name].reason)
        for name, wanted in expected.items()
        if wanted is not None and found[name].verdict is not wanted
    }
    assert differ == {}


@pytest.mark.slow
def test_a_sweep_judges_whole_submissions(tmp_path: Path, write: Write) -> None:
    problem = write(PROBLEM, "p/1_sum.py")
    write(HONEST, "s/good.py")
    write(SUBMISSION.format(body="return torch.cumsum(x, 1)"), "s/wrong.py")
    result = sweep(
        problem,
        tmp_path / "s",
        log=tmp_path / "log",
        jobs=2,
        trials=1,
        device="cpu",
        progress=False,
    )
    assert {Path(e.submission).stem: e.verdict for e in result.entries} == {
        "good": Verdict.PASSED,
        "wrong": Verdict.INCORRECT_VALUES,
    }
    whole = {Path(entry.submission).stem: found.to_dict() for entry, found in results(result.log)}
    assert whole["good"]["timing"] is not None
    assert whole["good"]["submission"]["name"] == str(tmp_path / "s" / "good.py")
    assert str(tmp_path / "s" / "wrong.py") in whole["wrong"]["replay"]
    again = sweep(problem, tmp_path / "s", log=tmp_path / "log", trials=1, device="cpu")
    assert (again.judged_before, again.entries) == (2, result.entries)


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="needs Ray")
def test_a_sweep_on_ray(tmp_path: Path, write: Write) -> None:
    problem = write(PROBLEM)
    write(HONEST, "s/good.py")
    write(SUBMISSION.format(body="import os; os._exit(0)"), "s/exits.py")
    write("class ModelNew(", "s/syntax.py")
    options = {"trials": 1, "timing": False, "static": False, "device": "cpu", "executor": "ray"}
    result = sweep(problem, tmp_path / "s", log=tmp_path / "log", **options)
    assert {Path(e.submission).stem: e.verdict for e in result.entries} == {
        "good": Verdict.PASSED,
        "exits": Verdict.RUNTIME_ERROR,
        "syntax": Verdict.COMPILE_ERROR,
    }
    assert result.not_judged == ()
