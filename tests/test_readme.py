"""Every Python example of the README runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
EXAMPLES = re.findall(r"## (.+?)\n(?:(?!##).)*?```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_there_are_six():
    assert len(EXAMPLES) == 6


@pytest.mark.parametrize(("title", "code"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_runs(title, code):
    exec(compile(code, f"README.md: {title}", "exec"), {"__name__": "__main__"})


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", README.read_text()):
        if "://" not in target:
            assert (README.parent / target).exists(), target
