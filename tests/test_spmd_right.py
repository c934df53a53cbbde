"""Right programs give the same values in whatever order their ranks run, and never an error."""

from __future__ import annotations

from typing import Any

import pytest
import spmd_right_groups  # noqa: F401  (it adds to RIGHT)
from spmd_right import RIGHT, Right

from kernelbench_dist.distributed_collectives.spmd import SpmdOptions, run_spmd
from kernelbench_dist.distributed_collectives.virtual import Faults

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")

each = pytest.mark.parametrize("right", RIGHT, ids=str)


def run(right: Right, faults: Faults | None = None) -> list[Any]:
    return run_spmd(right.program, right.world_size, options=SpmdOptions(faults=faults))


def alike(values: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return len(values) == len(expected) and all(map(alike, values, expected))
    return values == (pytest.approx(expected) if isinstance(expected, float) else expected)


def check(right: Right, seeds: range) -> None:
    first = run(right)
    assert alike(first, right.expected()), f"{first}, not {right.expected()}"
    for seed in seeds:
        delay = {seed % right.world_size: seed % 7}
        assert run(right, Faults(seed=seed, delay=delay)) == first, f"with seed {seed}"


@each
@pytest.mark.timeout(60)
def test_a_right_program_gives_its_values_in_whatever_order_its_ranks_run(right: Right) -> None:
    check(right, range(20))


@pytest.mark.slow
@each
def test_two_hundred_orders(right: Right) -> None:
    check(right, range(20, 220))


def test_no_program_is_named_twice() -> None:
    assert len({str(right) for right in RIGHT}) == len(RIGHT) >= 20
