"""For tests of one's own: hypothesis strategies, oracles in float64, and a comparison.

`oracles` holds a plain-loop version of each stacked collective; `linear_oracle` is that of
all-gather + Linear. `rank_faults` runs the ranks of a program in other orders.

>>> import torch
>>> from hypothesis import given
>>> @given(linear_problems(max_ranks=4, max_side=8))
... def my_kernel_is_right(p):
...     def mine(x, weight, bias):
...         return torch.nn.functional.linear(torch.cat(x.unbind(0), -1), weight, bias)
...
...     assert_matches(mine, linear_oracle, *p.args)
>>> my_kernel_is_right()
"""

from __future__ import annotations

try:
    import hypothesis as _  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "hypothesis":
        raise
    raise ImportError(
        "kernelbench_dist.testing needs hypothesis: pip install kernelbench-dist[test]"
    ) from error

from kernelbench_dist.testing import oracles
from kernelbench_dist.testing._matches import MatchReport, assert_matches, linear_oracle
from kernelbench_dist.testing._schedules import rank_faults
from kernelbench_dist.testing._strategies import (
    LAYOUTS,
    LinearProblem,
    dtypes,
    linear_problems,
    rank_lists,
    shapes,
    stacked_tensors,
)

__all__ = [
    "LAYOUTS",
    "LinearProblem",
    "MatchReport",
    "assert_matches",
    "dtypes",
    "linear_oracle",
    "linear_problems",
    "oracles",
    "rank_faults",
    "rank_lists",
    "shapes",
    "stacked_tensors",
]
