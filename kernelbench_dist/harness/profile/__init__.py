"""Where the time of a submission goes: kernels, hardware counters, classes and hints.

See docs/profiling.md. What is not measured is None, and a field beside it says why.
"""

from kernelbench_dist.harness.profile._disassemble import disassemble
from kernelbench_dist.harness.profile._profile import profile_kernel
from kernelbench_dist.harness.profile._results import (
    DisassembleResult,
    GpuSpecs,
    ProfileResult,
    SanitizeResult,
)
from kernelbench_dist.harness.profile._sanitize import sanitize
from kernelbench_dist.harness.profile._specs import get_gpu_specs

__all__ = [
    "DisassembleResult",
    "GpuSpecs",
    "ProfileResult",
    "SanitizeResult",
    "disassemble",
    "get_gpu_specs",
    "profile_kernel",
    "sanitize",
]
