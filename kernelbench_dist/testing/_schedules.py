"""Hypothesis strategies for what may befall the ranks of a program."""

from __future__ import annotations

from hypothesis import strategies as st

from kernelbench_dist.distributed_collectives.virtual import Faults

__all__ = ["rank_faults"]

_SEEDS = st.integers(0, 2**32 - 1)


def rank_faults(
    world_size: int,
    *,
    orders: bool = True,
    max_delay: int = 8,
    fail: bool = False,
    max_call: int = 8,
) -> st.SearchStrategy[Faults]:
    """Faults for a run: orders in which ranks take turns, delays, and on request a rank that fails.

    A program that is right gives the same result under each that has no failure. With a failure it
    raises RankError for that rank, or ends as without where the rank makes fewer calls. Examples
    shrink towards ``Faults()``, a run in rank order.

    Args:
        world_size: the number of ranks, 1 or more.
        orders: whether ranks may take turns in a random order, for a seed.
        max_delay: the longest delay of a rank, in turns of others; 0: no delays.
        fail: whether a rank fails, at one of its calls of communication; just one in each example.
        max_call: the last call that may be the one that fails, counted from 1.

    Raises:
        ValueError: for a number below the least that is accepted.

    >>> import torch, torch.distributed as dist
    >>> from hypothesis import given
    >>> from kernelbench_dist.distributed_collectives import SpmdOptions, run_spmd
    >>> def program():
    ...     x = torch.tensor(float(dist.get_rank()))
    ...     work = dist.all_reduce(x, async_op=True)
    ...     work.wait()  # without this line, the test fails
    ...     return x.item()
    >>> @given(rank_faults(3))
    ... def the_sum_does_not_depend_on_the_order(faults):
    ...     assert run_spmd(program, 3, options=SpmdOptions(faults=faults)) == [3.0, 3.0, 3.0]
    >>> the_sum_does_not_depend_on_the_order()
    """
    for name, value, least in (
        ("world_size", world_size, 1),
        ("max_delay", max_delay, 0),
        ("max_call", max_call, 1),
    ):
        if value < least:
            raise ValueError(f"rank_faults: {name} is {value}; {least} or more is accepted")
    ranks = st.integers(0, world_size - 1)
    none: st.SearchStrategy[dict[int, int]] = st.just({})
    # One number a rank, rather than a dictionary: each shrinks to no delay by itself.
    turns = st.tuples(*[st.integers(0, max_delay)] * world_size)
    delays = turns.map(lambda each: {rank: t for rank, t in enumerate(each) if t})
    calls = st.integers(1, max_call)
    return st.builds(
        Faults,
        seed=st.none() | _SEEDS if orders else st.none(),
        delay=none | delays if max_delay else none,
        fail=st.dictionaries(ranks, calls, min_size=1, max_size=1) if fail else none,
    )
