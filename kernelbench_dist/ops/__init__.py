"""Fused operators: a collective over stacked ranks and the computation after it, as one call.

The operators are `torch.ops.kernelbench_dist.*`; these functions are their Python face. `plan` says
which kernel a call would run, and why.
"""

from kernelbench_dist.ops._all_gather_linear import all_gather_linear, allow_3xtf32
from kernelbench_dist.ops._plan import Plan, plan

__all__ = ["Plan", "all_gather_linear", "allow_3xtf32", "plan"]
