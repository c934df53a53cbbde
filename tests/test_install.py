"""Whole installations: an sdist, a wheel and an editable one, each in a fresh environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

# Ignoring what this environment has, which the fresh one sees.
INSTALL = ("install", "--no-deps", "--ignore-installed")
CHECK_INSTALLED = """
import kernelbench_dist as k, kernelbench_dist.problems as p, torch, pathlib
assert k.build_info().extension, k.build_info()
x, w = torch.ones(2, 5, 3), torch.ones(4, 6)
assert torch.ops.kernelbench_dist.all_gather_linear(x, w).tolist() == [[6.0] * 4] * 5
try:
    torch.ops.kernelbench_dist.all_gather_linear(x, w[:, :5])
except RuntimeError as error:
    assert "got shape [4, 5]" in str(error), error
assert len(p.list_problems()) and p.load("level2/47").Model
assert pathlib.Path(k.__file__).with_name("py.typed").is_file()
print(k.__file__, p.__file__)
"""


def run(*command: str | Path, cwd: Path, rc: int = 0, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == rc, done.stdout[-5000:]
    return done.stdout


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A fresh virtual environment that sees this one's packages; returns its Python."""
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path)
    program = venv / "bin" / "python"
    here = Path(torch.__file__).parents[1]
    site = run(program, "-c", "import site; print(site.getsitepackages()[0])", cwd=tmp_path)
    # A .pth that names the folder, but does not run the .pth files in it: an editable install of
    # this package there stays out of the way.
    Path(site.strip(), "beside.pth").write_text(f"{here}\n")
    ninja = shutil.which("ninja", path=f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}")
    assert ninja is not None
    program.with_name("ninja").symlink_to(ninja)
    return program


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_wheel_from_the_sdist(tree, environment, tmp_path):
    """An sdist, a wheel from it without isolation, and that wheel in a fresh environment.

    Built by a compiler that would link libstdc++ statically: with two in the process, the first
    number in an error's message was a segmentation fault.
    """
    compiler = tmp_path / "static-g++"
    compiler.write_text('#!/bin/sh\nexec g++ -static-libstdc++ "$@"\n')
    compiler.chmod(0o755)
    cpu = {"KERNELBENCH_DIST_CUDA": "0", "CXX": str(compiler)}
    run(sys.executable, "setup.py", "--quiet", "sdist", cwd=tree)
    sdist = next(tree.glob("dist/*.tar.gz"))
    pip = (sys.executable, "-m", "pip")
    wheel_command = ("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", tmp_path, sdist)
    run(*pip, *wheel_command, cwd=tmp_path, **cpu)
    wheel = next(tmp_path.glob("*.whl"))
    assert "none-any" not in wheel.name
    run(*pip, "--python", environment, *INSTALL, wheel, cwd=tmp_path)
    out = run(environment, "-c", CHECK_INSTALLED, cwd=tmp_path)
    assert out.count(str(environment.parents[1])) == 2
    assert "0.1.0" in run(environment.with_name("kernelbench-dist"), "--version", cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("editable", [False, True], ids=["plain", "editable"])
def test_install_without_isolation(tree, environment, tmp_path, editable):
    pip = (sys.executable, "-m", "pip", "--python", environment)
    command = [*pip, *INSTALL, "--no-build-isolation", *["-e"] * editable, "."]
    cpu = {"KERNELBENCH_DIST_CUDA": "0"}
    run(*command, cwd=tree, **cpu)
    out = run(environment, "-c", CHECK_INSTALLED, cwd=tmp_path)
    assert out.count(str(tree if editable else environment.parents[1])) == 2
    if editable:  # also where the package lies in the current folder, and its problems do not
        run(environment, "-c", CHECK_INSTALLED, cwd=tree)
    # Nothing has changed: nothing is compiled.
    assert "ninja: no work to do" in run(*command, "-v", cwd=tree, **cpu)


@pytest.mark.slow
def test_pip_install_without_torch_says_what_to_do(tree, tmp_path):
    """Isolated, as `pip install .` is by default: the build environment holds no torch."""
    run(sys.executable, "-m", "venv", tmp_path / "bare", cwd=tmp_path)
    pip = (tmp_path / "bare/bin/python", "-m", "pip")
    out = run(*pip, "install", "--no-deps", ".", cwd=tree, rc=1)
    assert "there is none here (No module named 'torch'): install torch, then" in out
    assert "`pip install --no-build-isolation .`" in out
    assert "Traceback" not in out
