"""The program kernelbench-dist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kernelbench_dist
from kernelbench_dist import _build, cli


def test_info_for_people(capsys):
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"^kernelbench_dist +{re.escape(kernelbench_dist.__version__)}$", out, re.M)
    assert f"torch             {torch.__version__}" in out
    for sentence in kernelbench_dist.build_info().missing:
        assert sentence in out


def test_info_as_json(capsys):
    assert cli.main(["info", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["version"] == kernelbench_dist.__version__
    assert info["torch"] == torch.__version__
    assert info["extension"] is _build.EXTENSION
    assert isinstance(info["missing"], list)


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"kernelbench_dist {kernelbench_dist.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["judge-me"], ["info", "--yaml"]])
def test_wrong_use_is_exit_code_2(capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert "usage: kernelbench-dist" in capsys.readouterr().err


def test_the_program_and_the_module_are_the_same(tmp_path):
    program = Path(sys.executable).with_name("kernelbench-dist")
    if not program.is_file():
        pytest.skip("the package is not installed in this environment")
    run = {"capture_output": True, "text": True, "cwd": tmp_path, "check": True}
    by_name = subprocess.run([program, "info", "--json"], **run)
    by_module = subprocess.run([sys.executable, "-m", "kernelbench_dist", "info", "--json"], **run)
    assert by_name.stdout == by_module.stdout
