"""The build stamp, what build_info says, and the package in a fresh interpreter."""

from __future__ import annotations

import importlib.machinery
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import kernelbench_dist
from kernelbench_dist import _build

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(kernelbench_dist.__file__).parent


# The stamp


@pytest.mark.parametrize(
    ("architecture", "runs_on"),
    [
        ("8.0", {(8, 0), (8, 6), (8, 9)}),
        ("8.6", {(8, 6), (8, 9)}),
        ("9.0a", {(9, 0)}),
        ("9.0+PTX", {(9, 0), (10, 0), (10, 3), (12, 0)}),
        ("10.0f", {(10, 0), (10, 3)}),
        ("8.0+PTX", {(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)}),
        ("?", set()),
    ],
)
def test_which_code_runs_where(architecture, runs_on):
    devices = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)]
    assert {at for at in devices if _build._runs_on(architecture, *at)} == runs_on


def stamp(**changes: Any) -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "cuda": None,
        "architectures": [],
        "no_cuda_because": "the test says so",
        **changes,
    }


@pytest.mark.parametrize("version", ["2.10.0", "2.1.3+cu118", "3.13.0"])
def test_stamp_of_another_torch(version):
    why = _build._unfit(stamp(torch=version))
    assert why is not None
    assert f"built for torch {version} and this is torch {torch.__version__}" in why
    assert "pip install --no-build-isolation" in why


def test_a_patch_release_or_build_of_torch_fits():
    minor = ".".join(torch.__version__.split(".")[:2])
    assert _build._unfit(stamp(torch=f"{minor}.9+cu999")) is None


@pytest.mark.parametrize("here", [None, "12.8"])
def test_stamp_of_another_cuda(monkeypatch, here):
    monkeypatch.setattr(torch.version, "cuda", here)
    why = _build._unfit(stamp(cuda="13.0"))
    assert why is not None
    assert f"built for CUDA 13.0 and this torch is built for CUDA {here or 'none'}" in why
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert _build._unfit(stamp(cuda="13.0")) is None


def test_a_gpu_that_no_code_is_built_for(monkeypatch):
    monkeypatch.setattr(_build, "EXTENSION", True)
    monkeypatch.setattr(_build, "_not_loaded", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(_build, "_stamp", stamp(cuda="13.0", architectures=["8.0", "8.6"]))
    (sentence,) = _build.build_info().missing
    assert "built for 8.0, 8.6, and a GPU (compute capability 9.0) runs none" in sentence
    assert "TORCH_CUDA_ARCH_LIST=9.0" in sentence
    monkeypatch.setattr(_build, "_stamp", stamp(cuda="13.0", architectures=["8.0+PTX"]))
    assert _build.build_info().missing == ()


# In a fresh interpreter


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with a copy of the package, and nothing that was built."""
    ignore = shutil.ignore_patterns("*.so", "_build_stamp.json", "__pycache__", "problems")
    shutil.copytree(PACKAGE, tmp_path / "kernelbench_dist", ignore=ignore)
    return tmp_path


def python(code: str, cwd: Path) -> str:
    """What a fresh interpreter prints, with `cwd` before all else on its path."""
    environment = {**os.environ, "PYTHONPATH": str(cwd)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


WORKS_WITHOUT_EXTENSION = """
import json, torch
import kernelbench_dist as k
x = torch.arange(12.0).view(2, 2, 3).requires_grad_()
w = torch.arange(24.0).view(4, 6) - 10
y = k.ops.all_gather_linear(x, w, torch.tensor([1.0, 2.0, 3.0, 4.0]))
assert y.tolist() == [[-148, -3, 142, 287], [-283, -30, 223, 476]], y
y.sum().backward()
assert x.grad.tolist() == [[[-4, 0, 4]] * 2, [[8, 12, 16]] * 2], x.grad
assert k.nn.AllGatherLinear(2, 3, 4)(x).shape == (2, 4)
assert k.ops.plan("all_gather_linear", x, w).kernel == "fallback"
assert torch.compile(k.ops.all_gather_linear, fullgraph=True, backend="eager")(x, w).shape == (2, 4)
info = k.build_info()
print(json.dumps([info.extension, info.cuda, *info.missing]))
"""


@pytest.mark.parametrize(
    ("built", "reason"),
    [
        (None, "there is no compiled extension"),
        ({}, "nothing says which torch the extension was built for"),
        ("not JSON", "nothing says which torch the extension was built for"),
        (stamp(torch="2.10.0"), "was built for torch 2.10.0 and this is torch"),
        (stamp(cuda="9.9"), "was built for CUDA 9.9 and this torch is built for CUDA"),
        (stamp(), "the extension does not load"),
    ],
)
def test_without_its_extension_the_package_works_and_says_why(copy, built, reason):
    if built is not None:
        # No library at all: only one whose stamp fits is ever opened.
        suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
        (copy / "kernelbench_dist" / f"_C{suffix}").write_bytes(b"not a library")
        text = built if isinstance(built, str) else json.dumps(built)
        (copy / "kernelbench_dist" / "_build_stamp.json").write_text(text)
    extension, cuda, *missing = json.loads(python(WORKS_WITHOUT_EXTENSION, copy))
    assert not extension
    assert not cuda
    (sentence,) = missing
    assert reason in sentence
    assert "pip install --no-build-isolation" in sentence


def test_an_extension_of_another_python(copy):
    (copy / "kernelbench_dist" / "_C.cpython-27-x86_64-linux-gnu.so").write_bytes(b"")
    code = "import kernelbench_dist as k; print(*k.build_info().missing)"
    assert "_C.cpython-27-x86_64-linux-gnu.so was not built for this Python" in python(code, copy)


needs_extension = pytest.mark.skipif(not _build.EXTENSION, reason="needs the compiled extension")


@needs_extension
@pytest.mark.parametrize("name", ["kernelbench_dist", "kernelbench_dist._C"])
def test_import_alone_loads_torch_first(tmp_path, name):
    code = f"import {name}; print(kernelbench_dist.build_info().extension)"
    assert python(code, tmp_path).strip() == "True"


@pytest.mark.parametrize("cwd", ["elsewhere", "root"])
def test_problems_are_part_of_the_package(tmp_path, cwd):
    code = "import kernelbench_dist.problems as p; print(p.list_problems())"
    assert "level2/47" in python(code, ROOT if cwd == "root" else tmp_path)


def test_importing_takes_no_optional_package_and_compiles_nothing(tmp_path):
    code = """
import sys
for name in ("matplotlib", "hypothesis", "pytest", "ninja", "triton"):
    sys.modules[name] = None
import kernelbench_dist
print("torch.utils.cpp_extension" in sys.modules)
"""
    assert python(code, tmp_path).strip() == "False"


def test_what_is_imported_late_is_there_when_asked_for() -> None:
    assert kernelbench_dist.problems.load("47").name == "level2/47_virtual_all_gather_concat_linear"
    assert kernelbench_dist.testing.linear_oracle
    assert kernelbench_dist.harness.Verdict.PASSED
    with pytest.raises(AttributeError, match="has no attribute 'hardness'"):
        _ = kernelbench_dist.hardness
