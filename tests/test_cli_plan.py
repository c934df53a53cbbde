"""`kernelbench-dist plan`: the kernel of a size, and the bound by the datasheet."""

from __future__ import annotations

import json

import pytest
import torch

from kernelbench_dist import ops
from kernelbench_dist.cli import main


def told(capsys: pytest.CaptureFixture[str], arguments: str) -> str:
    assert main(["plan", *arguments.split()]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_it_tells_what_plan_says(capsys, dtype):
    found = json.loads(told(capsys, f"4 12 32 56 --device cpu --json --dtype {dtype}"))
    kind = getattr(torch, dtype)
    x, weight = torch.empty(4, 12, 32, dtype=kind), torch.empty(56, 128, dtype=kind)
    plan = ops.plan("all_gather_linear", x, weight, torch.empty(56, dtype=kind))
    assert found["plan"] == {
        "kernel": plan.kernel,
        "reason": plan.reason,
        "launches": plan.launches,
        "tiles": plan.tiles and list(plan.tiles),
        "split": plan.split,
    }
    assert found["bound"] is None
    assert (found["R"], found["B"], found["H"], found["K"]) == (4, 12, 32, 56)


def test_the_bound_by_hand(capsys):
    """2 R B H K operations, and each operand and the result once."""
    arguments = "8 4096 512 4096 --dtype bf16 --gpu H200 --json"
    bound = json.loads(told(capsys, arguments))["bound"]
    assert bound["flops"] == 2 * 4096 * 4096 * 4096
    assert bound["bytes"] == 2 * (3 * 4096 * 4096 + 4096)
    assert bound["us"] == bound["compute_us"] == pytest.approx(1e6 * 2 * 4096**3 / 989e12)
    assert bound["memory_us"] == pytest.approx(1e6 * bound["bytes"] / 4.8e12)
    assert bound["by"] == "compute"
    arguments = "4 12 32 56 --no-bias --gpu H200 --json"
    bound = json.loads(told(capsys, arguments))["bound"]
    assert bound["bytes"] == 4 * (4 * 12 * 32 + 56 * 128 + 12 * 56)
    assert bound["by"] == "memory"


def test_tf32_has_rates_of_its_own_and_leaves_torchs_flag(capsys):
    before = torch.backends.cuda.matmul.fp32_precision
    arguments = "8 4096 512 4096 --gpu H200 --json --dtype"
    tf32, float32 = (
        json.loads(told(capsys, f"{arguments} {dtype}"))["bound"] for dtype in ("tf32", "fp32")
    )
    assert tf32["bytes"] == float32["bytes"]
    assert tf32["flops_per_s"] == 495e12
    assert float32["flops_per_s"] == 67e12
    assert torch.backends.cuda.matmul.fp32_precision == before


def test_the_text(capsys):
    text = told(capsys, "8 4096 512 4096 --dtype bf16 --gpu H200 --device cpu")
    lines = text.splitlines()
    assert lines[0] == "all_gather_linear R=8 B=4096 H=512 K=4096, bfloat16, on cpu"
    assert lines[1].startswith("kernel ")
    assert lines[-3:] == [
        "bound    139 us, by compute (datasheet of the H200)",
        "memory   21 us: 101 MB at 4.8 TB/s",
        "compute  139 us: 137 GFLOP at 989 TFLOP/s",
    ]
    assert "--gpu H200 tells it" in told(capsys, "4 12 32 56 --device cpu")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("0 1 1 1", "argument R: '0'; a whole number of 1 or more is accepted"),
        ("1 1 1 x", "argument K: 'x'; a whole number of 1 or more is accepted"),
        ("1 1 1 1 --dtype int8", "argument --dtype: 'int8'; one of float32, tf32, "),
        ("1 1 1 1 --gpu B200", "argument --gpu: invalid choice: 'B200'"),
    ],
)
def test_wrong_use(capsys, arguments, said):
    with pytest.raises(SystemExit, match="2"):
        main(["plan", *arguments.split()])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("1 1 1 1 --device tpu", "device is 'tpu'; cpu, cuda or cuda:N is accepted"),
        ("9999999999 9999999999 9999 1", "overflow"),
    ],
)
def test_what_cannot_be_planned(capsys, arguments, said):
    assert main(["plan", *arguments.split()]) == 2
    assert said in capsys.readouterr().err
