"""Wrong programs end at once, with an error that says which rank, in which call, at which line."""

from __future__ import annotations

import inspect
import threading
import traceback

import pytest
import spmd_wrong_ranks  # noqa: F401  (it adds to WRONG)
import torch
import torch.distributed as dist
from spmd_wrong import WRONG, Wrong

from kernelbench_dist.distributed_collectives.spmd import SpmdOptions, run_spmd
from kernelbench_dist.distributed_collectives.virtual import Faults

# Alone each ends in a fraction of a second; a machine that does other work may need longer.
pytestmark = pytest.mark.timeout(60)

each = pytest.mark.parametrize("wrong", WRONG, ids=str)


def lines(wrong: Wrong) -> list[str]:
    """The places that the error must name."""
    source, first = inspect.getsourcelines(wrong.program)
    file = inspect.getsourcefile(wrong.program)
    return [f"{file}:{first + i}" for i, text in enumerate(source) if text.endswith("# here\n")]


def run(wrong: Wrong, faults: Faults | None = None) -> None:
    run_spmd(
        wrong.program,
        wrong.world_size,
        options=SpmdOptions(watchdog_s=wrong.watchdog_s, faults=faults),
    )


def told(error: BaseException) -> str:
    """The message, and the places in the traceback of what the rank raised."""
    frames = traceback.extract_tb(error.__cause__.__traceback__) if error.__cause__ else []
    return "\n".join([str(error), *(f"{frame.filename}:{frame.lineno}" for frame in frames)])


@each
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_program_ends_with_an_error_that_tells(
    wrong: Wrong, request: pytest.FixtureRequest
) -> None:
    if wrong.watchdog_s < 1:
        request.getfixturevalue("at_rest")
    assert lines(wrong) or wrong.watchdog_s < 1
    with pytest.raises(wrong.error) as caught:
        run(wrong)
    assert type(caught.value) is wrong.error
    assert caught.value.rank == wrong.rank
    missing = [s for s in wrong.says if s not in str(caught.value)]
    missing += [place for place in lines(wrong) if place not in told(caught.value)]
    assert not missing, f"{missing} is missing in:\n{caught.value}"
    # Nothing of it is left, but a thread that waits outside of Python's reach; and the next program
    # is not disturbed.
    assert wrong.watchdog_s < 1 or not [
        thread for thread in threading.enumerate() if thread.name.startswith("rank ")
    ]
    assert not dist.is_initialized()
    assert run_spmd(_sum_of_ranks, 2) == [1.0, 1.0]


@each
@pytest.mark.filterwarnings("ignore")
def test_it_ends_with_that_error_in_whatever_order_the_ranks_run(wrong: Wrong) -> None:
    if wrong.watchdog_s < 1:
        pytest.skip("found by the watchdog, and in one order only")
    for seed in range(10):
        with pytest.raises(wrong.error) as caught:
            run(wrong, Faults(seed=seed))
        assert type(caught.value) is wrong.error


def test_no_program_is_named_twice() -> None:
    assert len({str(wrong) for wrong in WRONG}) == len(WRONG) >= 50


def _sum_of_ranks() -> float:
    x = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(x)
    return x.item()
