"""What the tests of sweeps share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelbench_dist.harness import Verdict
from kernelbench_dist.harness.sweep import _judge
from kernelbench_dist.harness.sweep._plan import Job, make_plan

PROBLEM = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.cumsum(x, 0)


def get_inputs():
    return [torch.randn(5, 3)]


def get_init_inputs():
    return []
"""
SUBMISSION = """\
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        {body}
"""
HONEST = SUBMISSION.format(body="return torch.cumsum(x, 0)")

Write = Callable[..., Path]


def plan(problems: Any, submissions: Any, **options: Any) -> Any:
    given = {"tool": "run_correctness", "static": True, "arguments": {"trials": 1}, **options}
    return make_plan(problems, submissions, **given)


def job(key: str) -> Job:
    name = f"{key}.py"
    return Job(key, name, f"/{name}", b"", "p", "/p.py", b"", "run_correctness", False, {})


def verdict(key: str = "a", verdict: Verdict = Verdict.PASSED) -> dict[str, Any]:
    return _judge.no_verdict(job(key), f"reason of {key}", seconds=1.5, verdict=verdict)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
