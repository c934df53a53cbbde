"""examples/train_anywhere.py: the same losses on any ranks as without any parallelism."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "train_anywhere.py"
STEPS = 6


@pytest.fixture(scope="module")
def example():
    pytest.importorskip("kernelbench_dist.distributed_collectives.spmd")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE.parent))  # where the processes of ranks find it too
        yield importlib.import_module("train_anywhere")


@pytest.fixture(scope="module")
def plain(example) -> list[float]:
    """The losses of the same model in one process, with nothing of torch.distributed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = example.Transformer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    losses = []
    for batch in example.batches(STEPS):
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.transpose(1, 2), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run_script(*options: str, torchrun: int = 0) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable]
    if torchrun:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={torchrun}"]
    command += [str(EXAMPLE), *options]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert result.returncode == 0, result.stderr
    return result.stdout


def losses_of(table: str) -> list[float]:
    rows = re.findall(r"^ *(\d+)  (\d+\.\d+)$", table, re.MULTILINE)
    assert [int(step) for step, _ in rows] == list(range(1, len(rows) + 1))
    return [float(loss) for _, loss in rows]


def close(losses: list[float]) -> object:
    return pytest.approx(losses, rel=0, abs=1e-5)


def test_it_learns(plain):
    assert plain[-1] < plain[0] - 0.1


@pytest.mark.parametrize("ranks", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_virtual_ranks(example, plain, capsys, ranks):
    assert example.main(["--ranks", str(ranks), "--steps", str(STEPS)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{ranks} ranks, virtual\n")
    assert losses_of(out) == close(plain)
    assert err == ""


@pytest.mark.slow
def test_four_processes(example, plain):
    results = example.run_spmd(example.train, 4, (STEPS,), backend="gloo")
    assert results == [close(plain)] * 4


@pytest.mark.slow
def test_torchrun_prints_once(plain):
    out = run_script("--backend", "gloo", "--steps", str(STEPS), torchrun=4)
    assert out.count("4 ranks, gloo") == 1
    assert losses_of(out) == close(plain)


@pytest.mark.slow
def test_as_a_script_with_its_defaults(plain):
    out = run_script()
    assert out.startswith("8 ranks, virtual\n")
    losses = losses_of(out)
    assert len(losses) == 10
    assert losses[:STEPS] == close(plain)


@pytest.mark.gpu
@pytest.mark.slow
def test_nccl(example, plain):
    ranks = max(n for n in example.RANKS if n <= torch.cuda.device_count())
    assert example.run_spmd(example.train, ranks, (STEPS,), backend="nccl")[0] == close(plain)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ranks", "3"], "3 ranks: one of 1, 2, 4, 8 is accepted"),
        (["--steps", "0"], "--steps 0: 1 or more is accepted"),
        (["--backend", "mpi"], "invalid choice: 'mpi'"),
    ],
)
def test_bad_options(example, capsys, options, message):
    with pytest.raises(SystemExit) as caught:
        example.main(options)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_virtual_ranks_under_torchrun_are_refused(example, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(SystemExit):
        example.main([])
    assert "under torchrun, use gloo or nccl" in capsys.readouterr().err
