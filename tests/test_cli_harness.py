"""The judge's verbs of the program kernelbench-dist."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kernelbench_dist import cli, harness, problems
from kernelbench_dist.cli._progress import Lines
from kernelbench_dist.harness import CompileResult, CorrectnessResult, SubmitResult, Verdict
from kernelbench_dist.harness import sweep as sweep_package
from kernelbench_dist.harness._fuzz_cases import FuzzResult
from kernelbench_dist.harness._prompt import describe, prompt
from kernelbench_dist.harness.sweep import SweepResult

JUDGING = ["compile-kernel", "run-correctness", "static-check", "submit-kernel", "check-problem"]
VERBS = [*JUDGING, "fuzz", "replay", "sweep", "mcp", "run", "list", "show", "prompt", "info"]
VERBS += ["new", "audit", "compare", "report"]

PROBLEM = '''
"""Adds one.

Shapes: x (N,).
"""
import torch

N = 6
SIZES = {"odd": {"N": 7}}


class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.randn(N)]


def get_init_inputs():
    return []
'''

WRONG_AT_SEVEN = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x + (1.5 if len(x) == 7 else 1)
"""


def answer(kind, verdict="PASSED", **fields):
    common = {"reason": "so it is", "started_at": "2026-01-01T00:00:00+00:00", "seconds": 1.5}
    return kind(verdict=verdict, **{**common, **fields})


@pytest.fixture
def tool(monkeypatch):
    """Replaces a tool by one that notes its arguments, and returns or raises what it is given."""

    def replace(module, name, gives):
        calls = []

        def stand_in(*args, **options):
            calls.append((args, options))
            if isinstance(gives, BaseException):
                raise gives
            return gives

        monkeypatch.setattr(module, name, stand_in)
        return calls

    return replace


@pytest.fixture
def files(write):
    """Paths of a submission and a problem."""
    return str(write(WRONG_AT_SEVEN, "mine 1.py")), str(write(PROBLEM, "adds one.py"))


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example_and_the_defaults(capsys, verb):
    with pytest.raises(SystemExit) as stopped:
        cli.main([verb, "--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert f"example: kernelbench-dist {verb}" in out
    for option in ("--device", "--trials", "--timeout", "--jobs"):
        if option in out:
            entry = re.split(r"\n  -", out[out.rindex(f"  {option} ") :])[0]
            assert "(default:" in " ".join(entry.split())


def test_help_lists_every_verb(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert [verb for verb in VERBS if f"\n    {verb}" in out] == VERBS


# What is told of the suite


def test_list_has_a_line_for_each_problem(capsys):
    assert cli.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == problems.list_problems()
    assert any(
        re.fullmatch(
            r"level2/47_\w+ +All-gather over virtual ranks on the last dim, then a Linear layer\.",
            line,
        )
        for line in lines
    )
    assert cli.main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [problem["name"] for problem in found] == problems.list_problems()


def test_show(capsys):
    assert cli.main(["show", "47"]) == 0
    out = capsys.readouterr().out
    assert "concat(x[0], ..., x[R-1]" in out
    assert "- nominal: R=4, B=12, H=32, K=56" in out
    assert "- 'awkward': R=3, B=127, H=61, K=211" in out
    assert "- B varies from draw to draw" in out
    assert "class Model" not in out
    assert cli.main(["show", "47", "--source"]) == 0
    assert "class Model" in capsys.readouterr().out
    assert cli.main(["show", "47", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["constants"] == {"R": 4, "B": 12, "H": 32, "K": 56}
    assert "source" not in found


def test_prompt_holds_the_reference_the_sizes_and_a_file_to_start_from(capsys):
    assert cli.main(["prompt", "47"]) == 0
    out = capsys.readouterr().out
    assert problems.find("47")[1].read_text().strip() in out
    assert "- 'large': R=8, B=8192, H=1024, K=4096" in out
    for kind in ("cuda", "cpp", "triton", "cute", "torch"):
        assert f'- "{kind}": ' in out
    assert "- patches-timer: " in out
    skeleton = out.split("A file to start from:")[1].split("```python\n")[1].split("```")[0]
    names: dict = {}
    exec(compile(skeleton, "skeleton", "exec"), names)
    module = names["ModelNew"](4, 32, 56)
    reference = problems.load("47").Model(4, 32, 56)
    shapes = {name: p.shape for name, p in reference.named_parameters()}
    assert {name: p.shape for name, p in module.named_parameters()} == shapes
    with pytest.raises(NotImplementedError):
        module(None)


def test_prompt_says_what_the_problem_asks_for(write):
    plain = prompt(write(PROBLEM))
    assert "Gradients" not in plain
    assert "- nominal: N=6" in plain
    more = PROBLEM + "\nWORLD_SIZE = 2\nBACKWARD = True\nDETERMINISTIC = True\nVARIES = ['N']\n"
    asked = prompt(write(more))
    assert "Gradients of inputs and parameters are compared too." in asked
    assert "must give the same bits" in asked
    assert "program of 2 ranks" in asked
    assert "N varies from draw to draw" in asked


def test_a_problem_is_described_without_running_it(write):
    path = write(
        '"""Never run."""\nraise SystemExit\nSIZES = {n: {} for n in "ab"}\nVARIES = None\n'
    )
    described = describe(path)
    assert described.summary == "Never run."
    assert (described.sizes, described.varies, described.constants) == ({}, (), {})


# Options and exit codes


@pytest.mark.parametrize("verdict", list(Verdict))
def test_the_exit_code_follows_the_verdict(capsys, tool, verdict):
    tool(harness, "compile_kernel", answer(CompileResult, verdict))
    assert cli.main(["compile-kernel", "a.py", "47"]) == verdict.exit_code
    assert capsys.readouterr().out.startswith(f"{verdict}: ")


def test_options_reach_the_tool(tool):
    calls = tool(harness, "submit_kernel", answer(SubmitResult))
    line = (
        "submit-kernel a.py 47 --dtype bfloat16 --sizes tiny --sizes B=25,K=3 --trials 3 --seed 9 "
        "--device cpu --no-backward --ranks gloo --timeout 7 --build-timeout 70 "
        "--memory-limit 1.5G --no-static --rounds 12 --min-time-ms 0.5"
    )
    assert cli.main(line.split()) == 0
    (args, options) = calls[0]
    assert args == ("a.py", "47")
    assert callable(options.pop("progress"))
    assert options == {
        "dtype": "bfloat16",
        "sizes": ["tiny", "B=25,K=3"],
        "trials": 3,
        "seed": 9,
        "device": "cpu",
        "backward": False,
        "ranks": "gloo",
        "timeout_s": 7.0,
        "build_timeout_s": 70.0,
        "memory_limit_bytes": 3 << 29,
        "static": False,
        "rounds": 12,
        "min_time_ms": 0.5,
    }


@pytest.mark.parametrize(
    ("module", "name", "line", "kind"),
    [
        (harness, "compile_kernel", "compile-kernel a.py 47", CompileResult),
        (harness, "run_correctness", "run-correctness a.py 47", CorrectnessResult),
        (harness, "submit_kernel", "submit-kernel a.py 47", SubmitResult),
        (harness, "check_problem", "check-problem 47", harness.ProblemResult),
        (harness, "fuzz", "fuzz a.py 47", FuzzResult),
    ],
)
def test_defaults_are_those_of_the_functions(tool, module, name, line, kind):
    defaults = getattr(module, name).__kwdefaults__
    calls = tool(module, name, answer(kind))
    assert cli.main(line.split()) == 0
    options = calls[0][1]
    options.pop("progress")
    assert options == {key: defaults[key] for key in options}


def test_fuzz_prints_the_snippet_when_it_is_asked_for(capsys, tool):
    found = answer(FuzzResult, "INCORRECT_VALUES", snippet="print('shown')\n", stored="/x/y.json")
    calls = tool(harness, "fuzz", found)
    line = ["fuzz", "a.py", "47", "--examples", "5", "--time-limit", "9", "--values", "ties"]
    assert cli.main(line) == 1
    assert "print('shown')" not in capsys.readouterr().out
    assert (calls[0][1]["examples"], calls[0][1]["time_limit_s"]) == (5, 9.0)
    assert calls[0][1]["values"] == ["ties"]
    assert cli.main(["fuzz", "a.py", "47", "--snippet"]) == 1
    assert capsys.readouterr().out.endswith("\nprint('shown')\n")


def test_sweep(capsys, tool):
    result = SweepResult(
        log="x.jsonl", entries=(), not_judged=(), judged_before=0, started_at="", seconds=1.0
    )
    calls = tool(sweep_package, "sweep", result)
    line = "sweep 47 a b --jobs 3 --log x.jsonl --executor ray --no-timing --json"
    assert cli.main(line.split()) == 0
    assert json.loads(capsys.readouterr().out)["log"] == "x.jsonl"
    options = calls[0][1]
    assert (options["problems"], options["submissions"]) == ("47", ["a", "b"])
    assert (options["jobs"], options["log"], options["executor"]) == (3, "x.jsonl", "ray")
    assert (options["timing"], options["static"], options["retries"]) == (False, True, 2)


def test_a_missing_ray_is_the_environments_fault(capsys, tool):
    tool(sweep_package, "sweep", RuntimeError("needs Ray: pip install it"))
    assert cli.main(["sweep", "47", "a", "--executor", "ray"]) == 3
    assert capsys.readouterr().err == "kernelbench-dist: error: needs Ray: pip install it\n"


def test_a_missing_sdk_is_the_environments_fault(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    for name in [n for n in sys.modules if n.startswith(("mcp.", "kernelbench_dist.harness.mcp"))]:
        monkeypatch.delitem(sys.modules, name)
    assert cli.main(["mcp"]) == 3
    err = capsys.readouterr().err
    assert err.startswith("kernelbench-dist: error: ")
    assert "pip install 'kernelbench-dist[mcp]'" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run-correctness {mine} nosuch", "no problem 'nosuch'"),
        ("run-correctness nosuch.py 47", "no file nosuch.py"),
        ("run-correctness {mine} 47 --dtype int8", "dtype is 'int8'; float16, bfloat16"),
        ("run-correctness {mine} 47 --device tpu", "device is 'tpu'; 'cpu', 'cuda'"),
        ("run-correctness {mine} 47 --trials 0", "trials is 0; 1 to 10000"),
        ("run-correctness {mine} 47 --timeout=-1", "timeout_s is -1.0; a positive number"),
        ("run-correctness {mine} 47 --memory-limit 1K", "memory_limit_bytes is 1024; 268435456"),
        ("submit-kernel {mine} 47 --rounds 2", "rounds is 2; an int of 8 or more"),
        ("static-check {mine} nosuch", "no problem 'nosuch'"),
        ("fuzz {mine} 47 --values odd", "values hold 'odd'; normal"),
        ("replay nosuch", "nosuch"),
        ("show nosuch", "no problem 'nosuch'"),
    ],
)
def test_wrong_use_is_one_line(capsys, monkeypatch, tmp_path, files, line, said):
    monkeypatch.setenv("KERNELBENCH_DIST_STATE", str(tmp_path))
    arguments = [files[0] if word == "{mine}" else word for word in line.split()]
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kernelbench-dist: error: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--memory-limit lots", "'lots'; a number of bytes is accepted, with K, M, G or T"),
        ("--trials x", "invalid int value: 'x'"),
    ],
)
def test_an_option_that_does_not_parse(capsys, option, said):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["run-correctness", "a.py", "47", *option.split()])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "kernelbench-dist: interrupted\n"),
        (KeyboardInterrupt("2 of 3 done"), 130, "kernelbench-dist: interrupted: 2 of 3 done\n"),
        (OSError(28, "No space left"), 3, "kernelbench-dist: error: [Errno 28] No space left\n"),
        (BrokenPipeError("worker"), 3, "kernelbench-dist: error: worker\n"),
        (ValueError("a\nb"), 2, "kernelbench-dist: error: a b\n"),
    ],
)
def test_what_ends_a_verb_early_is_one_line(capsys, tool, raised, code, said):
    tool(harness, "run_correctness", raised)
    assert cli.main(["run-correctness", "a.py", "47"]) == code
    assert capsys.readouterr() == ("", said)


def test_a_fault_of_the_judge_is_no_verdict(capsys, tool):
    tool(harness, "run_correctness", AssertionError("it cannot be"))
    assert cli.main(["run-correctness", "a.py", "47"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" in err
    assert "it cannot be" in err
    assert err.splitlines()[-1].startswith("kernelbench-dist: error: the judge itself failed")


# A submission from stdin


def test_a_submission_through_stdin(capsys, monkeypatch):
    hostile = "import time\ntime.perf_counter = lambda: 0.0\n" + WRONG_AT_SEVEN
    monkeypatch.setattr(sys, "stdin", io.StringIO(hostile))
    assert cli.main(["static-check", "-", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "CHEATING"
    assert found["submission"]["name"] == "<source>"
    assert [f["rule"] for f in found["findings"]] == ["patches-timer"]


def test_one_line_through_stdin_is_no_path(tool, monkeypatch, files):
    calls = tool(harness, "compile_kernel", answer(CompileResult))
    monkeypatch.setattr(sys, "stdin", io.StringIO(files[0]))
    assert cli.main(["compile-kernel", "-", "47"]) == 0
    assert calls[0][0][0] == files[0] + "\n"


def test_nothing_through_stdin_is_wrong_use(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert cli.main(["static-check", "-"]) == 2
    assert "empty" in capsys.readouterr().err


# Judged for real


def test_a_failure_and_its_replay(capsys, files):
    mine, problem = files
    line = ["run-correctness", mine, problem, "--sizes", "odd", "--trials", "2", "--device", "cpu"]
    assert cli.main([*line, "--json"]) == 1
    out, err = capsys.readouterr()
    first = json.loads(out)
    assert first["verdict"] == "INCORRECT_VALUES"
    assert first["options"]["sizes"] == [{"N": 7}]
    assert all(line.startswith("kernelbench-dist: ") for line in err.splitlines())
    assert "kernelbench-dist: loading the submission" in err
    # As a shell takes the command apart; both paths hold a space.
    program, *again = shlex.split(first["replay"])
    assert program == "kernelbench-dist"
    assert cli.main([*again, "--json"]) == 1
    second = json.loads(capsys.readouterr().out)
    assert second["trials"] == first["trials"]


def test_sizes_that_the_problem_does_not_have(capsys, files):
    line = ["run-correctness", *files, "--device", "cpu", "--sizes"]
    assert cli.main([*line, "even"]) == 2
    assert (
        "sizes 'even'; accepted: names (odd, or all), or as 'B=25,K=3'" in capsys.readouterr().err
    )


def test_progress_in_a_pipe_names_each_step_once(capsys):
    tell = Lines()
    for doing in ("building a", "trials: 1 of 3", "trials: 2 of 3", "trials: 3 of 3", "timing\x1b"):
        tell(doing)
    assert capsys.readouterr().err.splitlines() == [
        "kernelbench-dist: building a",
        "kernelbench-dist: trials: 1 of 3",
        "kernelbench-dist: timing\\x1b",
    ]


# In processes of their own


def program(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelbench_dist", *arguments]
    return subprocess.run(command, text=True, capture_output=True, timeout=120, **options)


def test_a_reader_that_has_seen_enough(tmp_path):
    shell = f"{shlex.quote(sys.executable)} -m kernelbench_dist prompt 47; echo $? >&2"
    run = subprocess.run(
        ["bash", "-c", f"({shell}) | head -c 1"], text=True, capture_output=True, timeout=120
    )
    assert (run.stdout, run.stderr) == ("#", "0\n")


@pytest.mark.slow
def test_json_is_alone_on_stdout(files, tmp_path):
    mine, problem = files
    loud = Path(mine).read_text() + "\nprint('{}')\nimport os\nos.write(1, b'PASSED')\n"
    run = program(
        *("submit-kernel", "-", problem, "--json", "--device", "cpu", "--no-static"),
        *("--trials", "1", "--rounds", "8"),
        input=loud,
        cwd=tmp_path,
    )
    found = json.loads(run.stdout)
    assert run.returncode == 0
    assert found["verdict"] == "PASSED"
    assert found["timing"]["rounds"] == 8
    assert "kernelbench-dist: timing, 8 rounds\n" in run.stderr
