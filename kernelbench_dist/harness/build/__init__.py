"""Builds the extensions that submissions ask for, outside the submissions' processes.

In a submission's process the arguments of load_inline or load become a `BuildRequest`, which
travels as JSON to the judge; `build` compiles it there, or finds it built, and `load_built` loads
the library in the submission's process again.

A request is data: no Python of a submission runs in a build, and flags that would let a compiler
run programs are refused. The compilers themselves read what sources include, so that a file which
the judge's user can read is no secret.
"""

from kernelbench_dist.harness.build._build import BuildOutcome, build, load_built
from kernelbench_dist.harness.build._cache import cache_key, default_cache_dir
from kernelbench_dist.harness.build._environment import Environment, current_environment
from kernelbench_dist.harness.build._flags import FlagError, check_flags
from kernelbench_dist.harness.build._hints import hint_for
from kernelbench_dist.harness.build._launch import Launcher, launch
from kernelbench_dist.harness.build._request import BuildRequest

__all__ = [
    "BuildOutcome",
    "BuildRequest",
    "Environment",
    "FlagError",
    "Launcher",
    "build",
    "cache_key",
    "check_flags",
    "current_environment",
    "default_cache_dir",
    "hint_for",
    "launch",
    "load_built",
]
