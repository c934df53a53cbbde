"""The judge: whether a submission does what a problem's reference does, and how fast.

- `compile_kernel`: load it and build what it builds, with the compiler's messages.
- `run_correctness`: its answers against the reference in float64.
- `static_check`: what its source says of tricks.
- `submit_kernel`: all of these, then time, memory and launches, in one verdict.
- `compare`: several submissions, timed in the same rounds.
- `profile_kernel`: where its time goes, by kernels and hardware counters, and what to try.
- `sanitize`: compute-sanitizer on one call. `disassemble`: the machine code of what it builds.
- `get_gpu_specs`: a GPU's peaks, by datasheet and as measured.
- `fuzz`: the smallest sizes, values and layout at which it is wrong; `replay`: such a case again.
- `check_problem`: whether a problem can judge at all.
- `audit_problems`: whether problems keep all that files of the suite promise.
"""

from kernelbench_dist.harness._compare_submissions import ComparisonResult, compare
from kernelbench_dist.harness._fuzz import fuzz
from kernelbench_dist.harness._fuzz_cases import FuzzResult, ReplayResult
from kernelbench_dist.harness._fuzz_store import replay
from kernelbench_dist.harness._judge import check_problem, compile_kernel, run_correctness
from kernelbench_dist.harness._results import (
    CompileResult,
    CorrectnessResult,
    ProblemResult,
    StaticResult,
    SubmitResult,
)
from kernelbench_dist.harness._static import static_check
from kernelbench_dist.harness._submit import submit_kernel
from kernelbench_dist.harness._suite_audit import Audit, audit_problems
from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.harness.profile import (
    DisassembleResult,
    GpuSpecs,
    ProfileResult,
    SanitizeResult,
    disassemble,
    get_gpu_specs,
    profile_kernel,
    sanitize,
)

__all__ = [
    "Audit",
    "ComparisonResult",
    "CompileResult",
    "CorrectnessResult",
    "DisassembleResult",
    "FuzzResult",
    "GpuSpecs",
    "ProblemResult",
    "ProfileResult",
    "ReplayResult",
    "SanitizeResult",
    "StaticResult",
    "SubmitResult",
    "Verdict",
    "audit_problems",
    "check_problem",
    "compare",
    "compile_kernel",
    "disassemble",
    "fuzz",
    "get_gpu_specs",
    "profile_kernel",
    "replay",
    "run_correctness",
    "sanitize",
    "static_check",
    "submit_kernel",
]
