"""The ranks of a distributed program on one device.

- `distributed_collectives`: collectives on a stacked tensor (R, ...), whose row r is rank r's.
- `ops`, `nn`: fused operators, and the modules over them.
- `timing`: time callables honestly.
- `build_info()`: what this installation was built for, and what it lacks.
- `harness`, `problems` and `testing` are imported when they are first asked for: the judge is
  large, and `testing` needs hypothesis.
"""

import importlib
from types import ModuleType

from kernelbench_dist import distributed_collectives, nn, ops, timing
from kernelbench_dist._build import BuildInfo, build_info
from kernelbench_dist._version import __version__

__all__ = [
    "BuildInfo",
    "__version__",
    "build_info",
    "distributed_collectives",
    "nn",
    "ops",
    "timing",
]


def __getattr__(name: str) -> ModuleType:
    if name in ("harness", "problems", "testing"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
