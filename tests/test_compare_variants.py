"""examples/compare_variants.py, as far as it goes without a GPU."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernelbench_dist.harness import static_check

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("variants")
    if torch.cuda.is_available():
        pytest.skip("on a GPU it would run all of them")
    program = [sys.executable, str(EXAMPLES / "compare_variants.py"), "--write", str(folder)]
    return folder, subprocess.run(program, capture_output=True, text=True, cwd=folder)


def test_without_a_gpu_it_writes_the_files_and_says_what_it_needs(written):
    folder, done = written
    assert done.returncode == 3
    assert "the variants are CUDA kernels, and" in done.stderr
    assert len(list(folder.glob("*.py"))) == 9
    assert not list(folder.glob("*.jsonl"))


def test_variants_differ_in_two_lines_and_all_are_honest(written):
    folder, _ = written
    template = (EXAMPLES / "variants" / "variant.py").read_text().splitlines()
    texts = {path.stem: path.read_text().splitlines() for path in folder.glob("*.py")}
    assert texts["warp_7"] == template
    assert len({tuple(text) for text in texts.values()}) == 9
    for name, text in texts.items():
        changed = [line for line in difflib.ndiff(template, text) if line.startswith("+ ")]
        assert all(line.startswith(("+ WAY = ", "+ WARPS = ")) for line in changed), name
        checked = static_check("\n".join(text) + "\n", "level2/47")
        assert checked.passed, (name, checked.findings)
        assert checked.submission.kind == "cuda"
