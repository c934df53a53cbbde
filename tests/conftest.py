"""Hypothesis profiles, and the rule that gpu tests are skipped where there is no GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, settings

# No deadline: the first example of a run pays for start-up (CUDA context, first kernel, caches).
_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", max_examples=50, **_common)
settings.register_profile("fuzz", max_examples=5000, print_blob=True, **_common)
settings.load_profile("default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device, and there is none here")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
