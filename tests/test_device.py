"""default_device and the rank helpers: the group first, then torchrun's environment, then alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from kernelbench_dist.distributed_collectives.device import (
    default_device,
    get_rank,
    get_world_size,
    is_distributed_run,
    maybe_init_process_group,
)

_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def clean_env(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def torchrun_env(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)


def pretend_cuda(monkeypatch: pytest.MonkeyPatch, devices: int, current: int = 0) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)


def test_alone() -> None:
    assert (get_rank(), get_world_size(), is_distributed_run()) == (0, 1, False)
    assert maybe_init_process_group() is False
    assert not dist.is_initialized()


@pytest.mark.usefixtures("torchrun_env")
def test_environment() -> None:
    assert (get_rank(), get_world_size(), is_distributed_run()) == (5, 8, True)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_half_an_environment_is_none(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "3")
    assert (get_rank(), get_world_size(), is_distributed_run()) == (0, 1, False)
    assert maybe_init_process_group() is False


@pytest.mark.usefixtures("torchrun_env")
@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("RANK", "first", "RANK='first'.*integer, 0 or more"),
        ("RANK", "-1", "RANK='-1'"),
        ("RANK", "8", "RANK=8 is not in 0 to 7: WORLD_SIZE=8"),
        ("WORLD_SIZE", "0", "WORLD_SIZE='0'.*integer, 1 or more"),
        ("WORLD_SIZE", "", "WORLD_SIZE=''"),
    ],
)
def test_bad_environment(monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=says):
        get_rank()
    with pytest.raises(ValueError, match=says):
        maybe_init_process_group()


@pytest.mark.usefixtures("torchrun_env")
def test_the_group_is_asked_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    assert (get_rank(), get_world_size(), is_distributed_run()) == (2, 3, True)
    assert maybe_init_process_group() is True  # and starts nothing: there is no MASTER_ADDR


def test_group_without_environment() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert (get_rank(), get_world_size(), is_distributed_run()) == (0, 1, True)
        assert maybe_init_process_group() is True
    finally:
        dist.destroy_process_group()
    assert is_distributed_run() is False


def test_torch_without_distributed(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(dist, "is_available", lambda: False)
    monkeypatch.delattr(dist, "is_initialized")
    assert (get_rank(), get_world_size(), is_distributed_run()) == (0, 1, False)
    assert maybe_init_process_group() is False
    request.getfixturevalue("torchrun_env")
    assert (get_rank(), get_world_size()) == (5, 8)
    with pytest.raises(RuntimeError, match=r"without torch\.distributed"):
        maybe_init_process_group()


@pytest.mark.usefixtures("torchrun_env")
@pytest.mark.parametrize(
    ("cuda", "backend", "expected", "device"),
    [
        (True, None, "nccl", torch.device("cuda", 1)),
        (True, "cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl", torch.device("cuda", 1)),
        (True, "gloo", "gloo", None),
        (False, None, "gloo", None),
    ],
)
def test_backend_and_its_device(
    monkeypatch: pytest.MonkeyPatch,
    cuda: bool,
    backend: str | None,
    expected: str,
    device: torch.device | None,
) -> None:
    calls: list[tuple[str, torch.device | None]] = []
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(
        dist, "init_process_group", lambda name, device_id: calls.append((name, device_id))
    )
    assert maybe_init_process_group(backend) is True
    assert calls == [(expected, device)]
    assert current == ([] if device is None else [device])


def test_default_device_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert default_device() == torch.device("cpu")


def test_default_device_alone_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cuda(monkeypatch, devices=4, current=3)
    assert default_device() == torch.device("cuda", 3)
    monkeypatch.setenv("LOCAL_RANK", "1")  # left over from somewhere: not torchrun
    assert default_device() == torch.device("cuda", 3)


@pytest.mark.usefixtures("torchrun_env")
def test_default_device_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cuda(monkeypatch, devices=2, current=0)
    assert default_device() == torch.device("cuda", 1)


@pytest.mark.usefixtures("torchrun_env")
def test_local_rank_out_of_range(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cuda(monkeypatch, devices=1)
    with pytest.raises(ValueError, match=re.escape("LOCAL_RANK=1 names no visible CUDA device")):
        default_device()


@pytest.mark.usefixtures("torchrun_env")
@pytest.mark.parametrize("cuda", [True, False])
@pytest.mark.parametrize("value", ["zero", "-1", "1.0", ""])
def test_local_rank_must_be_a_number(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, value: str
) -> None:
    if cuda:
        pretend_cuda(monkeypatch, devices=2)
    monkeypatch.setenv("LOCAL_RANK", value)
    with pytest.raises(ValueError, match=re.escape(f"LOCAL_RANK={value!r}")):
        default_device()


@pytest.mark.gpu
def test_default_device_on_a_gpu() -> None:
    last = torch.cuda.device_count() - 1
    with torch.cuda.device(last):
        assert default_device() == torch.device("cuda", last)
        assert torch.ones(1, device=default_device()).device == torch.device("cuda", last)


def test_two_processes_under_torchrun(tmp_path: Path) -> None:
    """The real thing: gloo over torchrun's environment, with a sum that only two ranks give."""
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch, torch.distributed as dist
            from kernelbench_dist.distributed_collectives import device
            before = device.get_rank(), device.get_world_size(), device.is_distributed_run()
            assert device.maybe_init_process_group("gloo") and device.maybe_init_process_group()
            assert before == (dist.get_rank(), 2, True)
            assert (device.get_rank(), device.get_world_size()) == (dist.get_rank(), 2)
            x = torch.tensor([1 + dist.get_rank()])
            dist.all_reduce(x)
            assert x.item() == 3
            dist.destroy_process_group()
            """
        )
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
