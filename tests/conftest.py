"""Hypothesis profiles, the rule that gpu tests need a GPU, a warm-up, and shared fixtures."""

from __future__ import annotations

import importlib.util
import shutil
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gloo_pool import gloo_pool_fixture  # noqa: F401 (a fixture, found by its name)
from hypothesis import HealthCheck, settings

from kernelbench_dist.distributed_collectives.virtual._baton import Run
from kernelbench_dist.distributed_collectives.virtual._watchdog import Watchdog

ROOT = Path(__file__).resolve().parents[1]

# No deadline: how long one example takes says more about the machine than about the code.
_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", max_examples=50, **_common)
settings.register_profile("fuzz", max_examples=5000, print_blob=True, **_common)


def pytest_configure(config: pytest.Config) -> None:
    # Here rather than at import, so that the command line's profile wins whichever comes first.
    settings.load_profile(config.getoption("--hypothesis-profile", None) or "default")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    # Data and helpers of tests are imported by them: as doctests they would be loaded twice, under
    # two names, and what they register too.
    helper = collection_path.suffix == ".py" and not collection_path.name.startswith("test_")
    return True if helper else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device, and there is none here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Each device in turn; for the session, so that hypothesis tests may use it."""
    return request.param


@pytest.fixture(scope="session", autouse=True)
def _warm_up() -> None:
    """Start-up (the CUDA context, the libraries' handles) is no part of the first test's time."""
    if torch.cuda.is_available():
        x = torch.ones(8, 8, device="cuda", requires_grad=True)
        (x @ x).sum().backward()
        torch.cuda.synchronize()


@pytest.fixture
def at_rest() -> None:
    """Waits until nothing that earlier tests left behind is busy: compilers' pools, ranks' threads.

    The watchdog of virtual ranks takes the work of this process and its children for theirs.
    """
    watchdog = Watchdog(Run(1, torch.device("cpu")))
    deadline = time.monotonic() + 60
    while watchdog.idle_s() < 0.3 and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of the given text under tmp_path and returns its path."""

    def write_file(text: str, name: str = "problem.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write_file


@pytest.fixture
def load_file() -> Callable[[Path], types.ModuleType]:
    """Imports a Python file that is no part of the package, and returns its module."""

    def load(path: Path) -> types.ModuleType:
        spec = importlib.util.spec_from_file_location(f"kernelbench_dist_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources, with nothing that was built."""
    if not (ROOT / "README.md").is_file():
        pytest.skip("README.md is not here, and the metadata need it")
    target = tmp_path / "tree"
    ignore = shutil.ignore_patterns(
        ".*", "build", "dist", "*.egg-info", "*.so", "_build_stamp.json", "__pycache__"
    )
    shutil.copytree(ROOT, target, ignore=ignore)
    return target
