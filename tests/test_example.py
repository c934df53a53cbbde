"""examples/gather_linear.py and the benchmark script, run as a person would run them."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from kernelbench_dist import ops, problems
from kernelbench_dist.timing import BenchResult

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "gather_linear.py"
BENCHMARK = ROOT / "benchmarks" / "all_gather_linear.py"
PARTS = ["output", "grad x", "grad weight", "grad bias"]


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    return importlib.import_module("gather_linear")


def run_json(example, path: Path, *options: str) -> dict:
    assert example.main(["--device", "cpu", "--quick", "--json", str(path), *options]) == 0
    return json.loads(path.read_text())


def run_script(script: Path, *options: str) -> subprocess.CompletedProcess[str]:
    # The package may be found through this process's own path alone, so that is handed on.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(script), *options]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)


def test_default_run(example, capsys):
    assert example.main(["--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for text in (
        "x (4, 12, 32), weight (56, 128), bias (56,) -> (12, 56)",
        "float32",
        "cpu",
        "fused / reference",
        "forward + backward, call time",
        "not measured",
        "eps(float32)",
        *PARTS,
    ):
        assert text in out
    assert re.search(r"\d (us|ms|s) ", out)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dtypes_and_sizes(example, tmp_path, dtype):
    options = ["--dtype", dtype, "-R", "3", "-B", "5", "-H", "7", "-K", "2"]
    data = run_json(example, tmp_path / "a.json", *options)
    [result] = data["results"]
    assert result["dtype"] == dtype
    assert result["size"] == {"ranks": 3, "rows": 5, "features": 7, "outputs": 2}
    x, weight = torch.empty(3, 5, 7), torch.empty(2, 21)
    args = [t.to(getattr(torch, dtype)) for t in (x, weight)]
    assert result["plan"]["kernel"] == ops.plan("all_gather_linear", *args, device="cpu").kernel


def test_json_agrees_with_a_computation_of_its_own(example, tmp_path):
    data = run_json(example, tmp_path / "a.json")
    assert data["schema"] == "kernelbench_dist.examples.gather_linear/1"
    assert data["seed"] == 9
    [result] = data["results"]
    assert result["within_bound"] is True
    assert result["device"] == "cpu"

    problem = problems.load("level2/47")
    generator = torch.Generator().manual_seed(9)
    x = problem.get_inputs(generator, jitter=False)[0].cpu()
    dy = torch.randn(12, 56, generator=generator)
    torch.manual_seed(9)
    model = problem.Model(*problem.get_init_inputs())
    weight, bias = (p.detach() for p in model.parameters())
    x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()
    y = ops.all_gather_linear(x, weight, bias)
    y.backward(dy)

    joined = np.concatenate(list(x.detach().double().numpy()), -1)
    w, b, g = (t.detach().double().numpy() for t in (weight, bias, dy))

    def by_rank(joined_features):
        return np.stack(np.split(joined_features, 4, -1))

    # (got, exact, magnitude) by the gathered formulas, where the script goes rank by rank.
    wanted = {
        "output": (y, joined @ w.T + b, abs(joined) @ abs(w).T + abs(b)),
        "grad x": (x.grad, by_rank(g @ w), by_rank(abs(g) @ abs(w))),
        "grad weight": (weight.grad, g.T @ joined, abs(g).T @ abs(joined)),
        "grad bias": (bias.grad, g.sum(0), abs(g).sum(0)),
    }
    assert list(result["errors"]) == PARTS
    for name, (got, exact, magnitude) in wanted.items():
        bound = 4 * 2.0**-23 * magnitude
        share = abs(got.detach().double().numpy() - exact) / bound
        found = result["errors"][name]["fused"]
        assert found["share"] == pytest.approx(share.max(), rel=1e-6), name
        assert found["bound"] == pytest.approx(bound.flat[share.argmax()], rel=1e-6), name
        assert found["error"] == pytest.approx(found["share"] * found["bound"])

    assert list(result["times"]) == ["forward", "forward + backward"]
    for timed in result["times"].values():
        timed = BenchResult.from_dict(timed)  # complete, and of a known schema
        assert timed.baseline == "reference"
        assert timed["fused"].call.median_us > 0
    assert result["kernels"]["forward"] == {"reference": None, "fused": None}


def test_sweep_and_plot(example, tmp_path, capsys):
    picture = tmp_path / "a.png"
    options = ["--sweep", "4x12x32x56,2x3x5x7", "--plot", str(picture)]
    data = run_json(example, tmp_path / "a.json", *options)
    sizes = [tuple(result["size"].values()) for result in data["results"]]
    assert sizes == [(4, 12, 32, 56), (2, 3, 5, 7)]
    assert picture.read_bytes().startswith(b"\x89PNG")
    out, err = capsys.readouterr()
    assert "2x3x5x7" in out
    # No terminal, so a plain line for each size.
    assert [line.split("  ")[0] for line in err.splitlines()] == [
        "[1/2] 4x12x32x56",
        "[2/2] 2x3x5x7",
    ]
    assert "\x1b" not in out + err


def test_the_default_sweep_suits_a_cpu(example):
    options = example._parse(["--sweep", "--device", "cpu"])
    assert options.sizes[0] == (4, 12, 32, 56)
    assert 1 < len(options.sizes) < 11


def test_an_error_over_the_bound_is_exit_code_1(example, monkeypatch, capsys):
    right = ops.all_gather_linear
    monkeypatch.setattr(ops, "all_gather_linear", lambda x, w, b: right(x, w, b) * (1 + 1e-4))
    assert example.main(["--device", "cpu", "--quick"]) == 1
    assert "exceeds the bound" in capsys.readouterr().out


@pytest.mark.gpu
def test_on_a_gpu(example, tmp_path):
    path = tmp_path / "a.json"
    assert example.main(["--device", "cuda", "--quick", "--json", str(path)]) == 0
    [result] = json.loads(path.read_text())["results"]
    assert result["plan"]["launches"] == 1
    # A profiler may not be permitted; then nothing is claimed.
    assert result["kernels"]["forward"]["fused"] in (1, None)
    for timed in result["times"].values():
        assert timed["method"] == "graph", timed["reason"]
        assert BenchResult.from_dict(timed)["fused"].warm.median_us > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rows", "0"], "'0' is not a whole number of 1 or more"),
        (["-K", "5.5"], "'5.5' is not a whole number"),
        (["--rows", "999999999999"], "GiB"),
        (["--dtype", "float8"], "invalid choice: 'float8'"),
        (["--device", "tpu"], "'tpu' is not cpu, cuda"),
        (["--device", "cuda:99"], "torch sees"),
        (["--sweep", "4x12x32"], "'4x12x32' is not a size"),
        (["--sweep", "4x12x32x0"], "'0' is not a whole number"),
        (["--sweep", "4x12x32x56", "--rows", "3"], "--rows and --sweep both give sizes"),
        (["--json", "/nowhere/at/all.json"], "cannot write /nowhere/at/all.json"),
        (["--plot", "/nowhere/at/all.png"], "cannot write /nowhere/at/all.png"),
        (["--json", "a.png", "--plot", "a.png"], "a.png cannot be both --json and --plot"),
        (["--seed", str(10**30)], "0 to 2^63 - 1 is accepted"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(example, capsys, options, message):
    assert example.main(options) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("gather_linear.py: error: ")
    assert message in err


def test_a_picture_of_an_unknown_kind(example, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert example.main(["--plot", str(tmp_path / "a.foo")]) == 2
    assert "no such kind of picture" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_no_matplotlib(example, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert example.main(["--plot", str(tmp_path / "a.png")]) == 2
    assert "pip install" in capsys.readouterr().err


def test_as_a_script():
    done = run_script(EXAMPLE, "--dtype", "int8")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_the_benchmark_on_a_cpu(tmp_path, monkeypatch):
    files = {name: tmp_path / f"a.{name}" for name in ("json", "markdown", "plot")}
    files["plot"] = tmp_path / "a.png"
    monkeypatch.setenv("GIT_COMMIT", "0123abc")
    done = run_script(
        BENCHMARK,
        *("--device", "cpu", "--quick", "--sizes", "4x12x32x56,2x3x8x5"),
        *("--dtypes", "float32,float64"),
        *(text for name, path in files.items() for text in (f"--{name}", str(path))),
    )
    assert done.returncode == 0, done.stderr
    assert "4x12x32x56, float32" in done.stdout
    assert "forward + backward" in done.stdout
    data = json.loads(files["json"].read_text())
    assert data["schema"] == "kernelbench_dist.benchmarks.all_gather_linear/1"
    assert data["environment"]["commit"] == "0123abc"
    assert "commit 0123abc" in done.stdout
    assert str(tmp_path) not in files["json"].read_text()
    assert data["arguments"][-6:] == [
        "--json",
        "a.json",
        "--markdown",
        "a.markdown",
        "--plot",
        "a.png",
    ]
    assert data["cells"][0]["size"] == {"R": 4, "B": 12, "H": 32, "K": 56}
    assert len(data["cells"]) == 4
    for cell in data["cells"]:
        timed = BenchResult.from_dict(cell["first"])
        assert [c.name for c in timed.candidates] == ["reference", "Linear alone", "fused"]
        assert cell["share_of_error_bound"] <= 1
    assert "| 2x3x8x5 |" in files["markdown"].read_text()
    assert files["plot"].read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    return importlib.import_module


def test_paths_are_kept_without_folders(script):
    arguments = ["--quick", "--json", "/a b/c.json", "--plot=d/e.png", "--sizes", "4x12x32x56"]
    assert script("_setup").file_names_only(arguments) == [
        *("--quick", "--json", "c.json", "--plot=e.png", "--sizes", "4x12x32x56")
    ]


def test_the_commit(script, monkeypatch):
    setup = script("_setup")
    monkeypatch.setenv("GIT_COMMIT", "")  # as good as none
    monkeypatch.setattr(setup, "output_of", lambda *command: "from git")
    assert setup.commit() == "from git"
    monkeypatch.setattr(setup, "output_of", lambda *command: "")
    assert setup.commit() == "unknown"
    monkeypatch.setenv("GIT_COMMIT", "said")
    assert setup.commit() == "said"


def test_checks_follow_from_the_kept_figures(script):
    tables = script("_tables")
    data = json.loads((ROOT / "benchmarks/results/all_gather_linear-h200.json").read_text())
    assert data["environment"]["commit"] == "cde31e1"
    assert not any("/" in argument for argument in data["arguments"])
    cells = [
        tables.Cell(
            tables.Size(*cell["size"].values()),
            cell["dtype"],
            ops.Plan(**cell["plan"]),
            cell["share_of_error_bound"],
            *(BenchResult.from_dict(cell[key]) for key in ("first", "second") if cell[key]),
        )
        for cell in data["cells"]
    ]
    for check, kept in zip(tables.checks_of(cells, None), data["checks"][-2:], strict=True):
        assert (check.name, check.figure) == (kept["name"], kept["figure"])
        assert check.detail == kept["detail"]
    again = [dataclasses.replace(cells[0], second=cells[0].first), *cells[1:]]
    for check in tables.checks_of(again, None):
        assert "of 55 cells 1 measured again" in check.detail


def test_the_ways_without_a_gpu(script, monkeypatch, capsys):
    ways = script("all_gather_linear_ways")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(Path, "write_text", None)
    assert ways.main(["--quick"]) == 0
    assert capsys.readouterr().out.startswith("nothing measured")
    with pytest.raises(SystemExit):
        ways.main(["--dtypes", "int8"])
    assert "'int8' is not one of float32, tf32" in capsys.readouterr().err


def test_the_summary_of_the_ways(script):
    summary = script("all_gather_linear_ways").summary
    us = {"reference": 4.0, "chosen": 2.0, "dot 1x1 by 32": 1.6, "split 8x64 by 2": 3.0}
    ours, theirs = ({"kernel": kernel, "us": us} for kernel in ("dot", "fallback"))
    assert summary("tf32", [ours, theirs]) == (
        "tf32: ours at 1 of 2 sizes, 0.50 of the reference (worst 0.50, 0 above 1.03), 1.250 of the"
        " best way; 1 fallbacks where some way took less than 0.9 of the reference"
    )
    assert summary("tf32", [theirs]).startswith("tf32: ours at 0 of 1 sizes; 1 fallbacks")


@pytest.mark.gpu
def test_the_ways_on_a_gpu(script, tmp_path, capsys):
    path = tmp_path / "a.json"
    options = ["--quick", "--count", "2", "--dtypes", "float16,tf32", "--json", str(path)]
    assert script("all_gather_linear_ways").main(options) == 0
    data = json.loads(path.read_text())
    ways = torch.ops.kernelbench_dist._all_gather_linear_ways()
    for dtype in ("float16", "tf32"):
        for row in data[dtype]:
            assert (
                {"reference", "chosen", *ways[:5]}
                <= row["us"].keys()
                <= {"reference", "chosen", *ways}
            )
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sizes", "4x3"], "'4x3' is not a size: ranks x rows"),
        (["--dtypes", "int8"], "'int8' is not one of"),
        (["--device", "cpu", "--dtypes", "tf32"], "tf32"),
        (["--json", "/nowhere/at/all.json"], "there is no folder"),
    ],
)
def test_bad_input_to_the_benchmark(script, capsys, options, message):
    with pytest.raises(SystemExit) as stop:
        script("all_gather_linear").main(options)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
