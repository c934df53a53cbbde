"""Where the time of a submission goes: kernels, hardware counters, classes and hints.

See docs/profiling.md. What is not measured is None, and a field beside it says why.
"""

from kernelbench_dist.harness.profile._profile import profile_kernel
from kernelbench_dist.harness.profile._results import ProfileResult

__all__ = ["ProfileResult", "profile_kernel"]
