"""profile_kernel where there is no GPU, and the run of a tool around a submission's worker.

The tools are stand-ins: scripts that start the worker as the real ones do, and write a page made by
hand. What the real ones say is tested in test_profile_gpu.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from profile_cases import page
from submissions import answer, gather_linear, problem

from kernelbench_dist import cli
from kernelbench_dist.harness import ProfileResult, Verdict, _activity, profile_kernel
from kernelbench_dist.harness._judge import make_limits, make_options
from kernelbench_dist.harness._session import Session
from kernelbench_dist.harness._submission import read_submission
from kernelbench_dist.harness.profile import _ncu
from kernelbench_dist.harness.profile._counters import METRICS
from kernelbench_dist.report._terminal import for_terminal


@pytest.fixture(scope="module")
def cpu() -> ProfileResult:
    return profile_kernel(gather_linear(), "47", device="cpu", sizes="B=3")


def test_on_a_cpu_the_answer_is_partial_and_says_why(cpu):
    assert cpu.passed, cpu.reason
    assert cpu.is_known_correct
    assert cpu.sizes == {"B": 3}
    assert {"aten::addmm", "aten::cat"} <= {o.name for o in cpu.operators}
    (addmm,) = [o for o in cpu.operators if o.name == "aten::addmm"]
    assert addmm.calls_per_call == 1
    assert cpu.times.call_us > 0
    assert cpu.times.warm_us is None
    assert cpu.launches_per_call is None
    assert (cpu.kernels, cpu.time_class, cpu.roofline_light, cpu.hints) == ((), None, None, ())
    assert cpu.counters_absent == "the device is cpu, which has none"
    # x, weight, bias and y of float32, and two operations for each product.
    assert cpu.analysis.bytes_moved == 4 * (4 * 3 * 32 + 56 * 128 + 56 + 3 * 56)
    assert cpu.analysis.flops == 2 * 3 * 56 * 128
    assert cpu.analysis.peak_bytes_per_s is None


def test_its_report_says_what_there_is_and_what_there_is_not(cpu):
    text = str(cpu)
    assert "aten::addmm" in text
    assert "there is no device but the CPU" in text
    assert "none: the device is cpu, which has none" in text
    assert "\x1b" not in text


def test_json_there_and_back(cpu):
    assert ProfileResult.from_dict(json.loads(cpu.to_json())) == cpu


def test_a_wrong_kernel_is_profiled_and_said_to_be_wrong():
    result = profile_kernel(gather_linear("return self.right(x) * 1.01"), "47", device="cpu")
    assert result.verdict is Verdict.INCORRECT_VALUES
    assert not result.is_known_correct
    assert result.operators
    assert any("figures of a wrong kernel" in note for note in result.notes)
    assert "WRONG (INCORRECT_VALUES)" in str(result)


@pytest.mark.slow
def test_one_that_does_not_run_has_no_figures():
    result = profile_kernel(gather_linear("raise ValueError('no')"), "47", device="cpu")
    assert result.verdict is Verdict.RUNTIME_ERROR
    assert "ValueError: no" in result.reason
    assert result.times is None
    assert "time      not measured" in str(result)


def test_one_size_is_accepted():
    with pytest.raises(ValueError, match="sizes are 4; one is accepted here"):
        profile_kernel(gather_linear(), "47", device="cpu", sizes="all")


@pytest.mark.slow
def test_the_verb(tmp_path, capsys):
    source, of = tmp_path / "mine.py", tmp_path / "double.py"
    source.write_text(answer("x + x"))
    of.write_text(problem("2 * x"))
    assert cli.main(["profile-kernel", str(source), str(of), "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tool"] == "profile_kernel"
    assert found["operators"][0]["name"] == "aten::add"


def test_wrong_answers_stand_out_at_a_terminal(cpu, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    wrong = cpu.model_copy(
        update={"trial": cpu.trial.model_copy(update={"verdict": Verdict.NOT_FINITE})}
    )
    assert "\x1b[1;31mWRONG (NOT_FINITE)" in for_terminal(wrong)
    assert "\x1b" not in str(wrong)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;31m" not in for_terminal(wrong)


def test_launches_that_are_alike_are_one_row():
    """A trace made by hand, in the form of torch.profiler's."""
    said = {"grid": [96, 1, 1], "block": [128, 1, 1], "registers per thread": 32,
            "shared memory": 0}  # fmt: skip
    events = [
        {"ph": "X", "cat": "kernel", "name": "scale", "ts": t, "dur": 1.5, "args": said}
        for t in (0, 10, 20)
    ]
    events += [
        {
            "ph": "X",
            "cat": "kernel",
            "name": "scale",
            "dur": 4.0,
            "args": {**said, "grid": [1] * 3},
        },
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD", "dur": 2.0, "args": {"bytes": 64}},
        {"ph": "X", "cat": "gpu_memset", "name": "Memset", "dur": 1.0, "args": {"bytes": 8}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 9.0, "args": {}},
        {"ph": "M", "name": "process_name"},
    ]
    rows = _activity.read_trace(json.dumps({"traceEvents": events}))
    found = [(r["kind"], r["launches"], r["us"], r["grid"], r["bytes"]) for r in rows]
    assert found == [
        ("kernel", 3, 4.5, [96, 1, 1], None),
        ("kernel", 1, 4.0, [1, 1, 1], None),
        ("copy", 1, 2.0, None, 64),
        ("fill", 1, 1.0, None, 8),
    ]


# A tool around the worker

STAND_IN = """#!{python}
import subprocess, sys
arguments = sys.argv[1:]
log = arguments[arguments.index("--log-file") + 1]
start = arguments.index({python!r})
{before}
code = subprocess.call(arguments[start:])
{after}
"""


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Puts a stand-in for ncu on PATH."""

    def make(after: str, before: str = "") -> None:
        path = tmp_path / "ncu"
        path.write_text(STAND_IN.format(python=sys.executable, before=before, after=after))
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return make


def count(source: str, timeout_s: float = 60.0) -> _ncu.Counted:
    options = make_options("47", device="cpu", trials=1)
    submission = read_submission(source)
    limits = make_limits(60, 60, None)
    with Session("47", options, limits, submission) as session:
        session.open_problem()
        session.open_submission()
        session.construct_reference(1, {})
        draw = session.draw(2, jitter=False)
        return _ncu.count(session, draw, timeout_s=timeout_s)


def writes(text: str) -> str:
    return f"open(log, 'w').write({text!r})"


PAGE = page({"gpu__time_duration.sum": "1500"}, units={"gpu__time_duration.sum": "ns"})


def test_a_tool_starts_the_worker_and_its_page_is_read(tool):
    tool(f"if code == 0: {writes(PAGE)}")
    found = count(gather_linear())
    assert found.absent is None
    assert found.kernels[0].time_us == pytest.approx(1.5)
    assert found.page == PAGE


@pytest.mark.slow
def test_the_worker_under_a_tool_cannot_write_its_page(tool, tmp_path):
    from kernelbench_dist.harness._sandbox import landlock_version

    if landlock_version() == 0:
        pytest.skip("this kernel has no Landlock")
    target = tmp_path / "reached"
    tool(f"if code == 0: {writes(PAGE)}")
    body = f"""
    import glob, os
    own = os.path.join(os.environ["TMPDIR"], "own")
    open(own, "w").close()
    for path in (os.path.join(os.environ["TMPDIR"], "..", "log.txt"), {str(target)!r}):
        try:
            open(path, "w").close()
        except PermissionError:
            continue
        raise SystemExit(7)
    return self.right(x)
    """
    assert count(gather_linear(body)).absent is None
    assert not target.exists()


@pytest.mark.slow
def test_metrics_that_are_not_known_are_asked_for_no_more(tool, tmp_path):
    unknown = METRICS[5]
    base = unknown.partition(".")[0]
    seen = tmp_path / "seen"
    tool(
        f"asked = {unknown!r} in arguments[arguments.index('--metrics') + 1].split(',')\n"
        f"open({str(seen)!r}, 'a').write(str(asked) + ' ')\n"
        f"text = '==ERROR== Failed to find metric {base}' if asked else {PAGE!r}\n"
        "open(log, 'w').write(text)"
    )
    assert count(gather_linear()).absent is None
    assert seen.read_text() == "True False "


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
            "Performance Counters on the target device 0.",
            "the driver does not let this user read hardware counters (ERR_NVGPUCTRPERM): it takes",
        ),
        (
            "==ERROR== Failed to initialize the profiler: LibraryNotLoaded",
            "Nsight Compute gave no counters: Failed to initialize the profiler: LibraryNotLoaded",
        ),
        ("==WARNING== No kernels were profiled.", "No kernels were profiled."),
        ("", "it recorded no kernel"),
    ],
)
def test_why_there_are_no_counters(said, reason):
    assert reason in _ncu.why(said, None)


def test_a_tool_that_ends_before_it_starts_anything(tool):
    tool("", before="print('==ERROR== no such device'); sys.exit(1)")
    found = count(gather_linear())
    assert "no such device" in found.absent


@pytest.mark.slow
def test_a_page_that_the_submission_prints_is_none(tool):
    tool("")
    found = count(gather_linear(f"print({PAGE!r}, flush=True)\nreturn self.right(x)"))
    assert found.kernels == ()
    assert found.page == ""


def test_no_tool(monkeypatch):
    monkeypatch.setattr(_ncu, "find_tool", lambda name: None)
    found = count(gather_linear())
    assert found.absent.startswith("ncu was not found on PATH or in CUDA_HOME")


@pytest.mark.slow
def test_a_submission_that_fails_under_the_tool_is_named(tool):
    tool(writes(""))
    found = count(gather_linear("raise ValueError('only here')"))
    assert "replaying raised ValueError: only here" in found.absent


@pytest.mark.slow
def test_the_tool_has_a_time_limit(tool):
    tool("import time; time.sleep(600)")
    found = count(gather_linear(), timeout_s=15.0)
    assert found.kernels == ()
    assert found.absent


@pytest.mark.slow
def test_folders_of_a_tool_s_run_are_removed(tool, tmp_path, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tool(writes(PAGE))
    count(gather_linear())
    assert not list(Path(tmp_path).glob("kernelbench_dist-tool-*"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.slow
def test_without_a_gpu_the_default_device_is_the_cpu():
    result = profile_kernel(gather_linear(), "47")
    assert result.options.device == "cpu"
    assert result.passed
