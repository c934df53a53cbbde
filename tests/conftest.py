"""Hypothesis profiles, the rule that gpu tests are skipped without a GPU, and a warm-up."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, settings

# No deadline: how long one example takes says more about the machine than about the code.
_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", max_examples=50, **_common)
settings.register_profile("fuzz", max_examples=5000, print_blob=True, **_common)


def pytest_configure(config: pytest.Config) -> None:
    # Here rather than at import, so that the command line's profile wins whichever comes first.
    settings.load_profile(config.getoption("--hypothesis-profile", None) or "default")


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
