"""Raw pages and counters for tests of profiling, without a GPU.

`page` makes a page by hand: its form is Nsight Compute's, its figures are not measured. Pages that
were measured lie in tests/data/profile, each with what is expected of it in expected.json.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelbench_dist.harness.profile._counters import Access, KernelCounters, SharedAccess, Stall

OWN = """
from pathlib import Path

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

KIND = "cuda"
load_inline(
    "profile_cases",
    cpp_sources="",
    cuda_sources=SOURCE,
    no_implicit_headers=True,
    is_python_module=False,
)


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.ops.profile_cases.NAME(x)
"""
DATA = Path(__file__).parent / "data" / "profile"
HEAD = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
        "Block Size", "Grid Size", "Device", "CC")  # fmt: skip


def measured_pages() -> list[tuple[str, Path, Mapping[str, Any]]]:
    """(name, file, expectations) of each page in tests/data/profile."""
    table = DATA / "expected.json"
    expected = json.loads(table.read_text()) if table.exists() else {}
    return [(path.stem, path, expected.get(path.stem, {})) for path in sorted(DATA.glob("*.csv"))]


def own(name: str) -> str:
    """A submission that calls one operator of submissions.cu, which all of them build alike."""
    source = (DATA / "submissions.cu").read_text()
    return OWN.replace("SOURCE", repr(source)).replace("NAME", name)


def impossible(kernel: KernelCounters) -> list[str]:
    """Figures that cannot be: negative ones, and percentages above 100 and some noise."""
    wrong = []
    for name, value in kernel.model_dump().items():
        for part in value.values() if isinstance(value, dict) else [value]:
            if isinstance(part, int | float) and part < 0:
                wrong.append(f"{name} {part}")
            if isinstance(part, float) and "percent" in name and part > 105:
                wrong.append(f"{name} {part}")
    if kernel.stalls and abs(sum(s.percent for s in kernel.stalls) - 100) > 1e-6:
        wrong.append("stalls")
    return wrong


def page(
    *kernels: Mapping[str, str],
    units: Mapping[str, str] | None = None,
    name: str = "scale(float *, int)",
) -> str:
    """A raw page made by hand, of launches with these columns."""
    columns = list(dict.fromkeys(key for kernel in kernels for key in kernel))
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow((*HEAD, *columns))
    writer.writerow((*[""] * len(HEAD), *((units or {}).get(c, "") for c in columns)))
    for i, kernel in enumerate(kernels):
        head = (str(i), "4242", "python3.12", "host", name, "1", "7", "(128, 1, 1)", "(96, 2, 1)",
                "0", "9.0")  # fmt: skip
        writer.writerow((*head, *(kernel.get(c, "") for c in columns)))
    return f"==PROF== Connected to process 4242\n==PROF== Profiling\n{text.getvalue()}"


def access(efficiency: float, sectors: int = 4000, requests: int = 1000) -> Access:
    """Loads or stores of which so much of the sectors was asked for."""
    asked = round(32 * sectors * efficiency)
    return Access(
        requests=requests,
        sectors=sectors,
        bytes_asked=asked,
        sectors_per_request=sectors / requests,
        ideal_sectors_per_request=asked / requests / 32,
        bytes_per_lane=asked / requests / 32,
        efficiency=efficiency,
    )


def shared(conflicts: int, wavefronts: int = 1000) -> SharedAccess:
    return SharedAccess(
        requests=None,
        wavefronts=wavefronts,
        conflicts=conflicts,
        conflict_share=conflicts / wavefronts,
    )


def stalls(**percent: float) -> tuple[Stall, ...]:
    """These reasons, and "wait" for the rest of the hundred."""
    rest = 100 - sum(percent.values())
    found = {**percent, "wait": rest}
    return tuple(Stall(reason=reason, percent=value) for reason, value in found.items())


def counters(**fields: Any) -> KernelCounters:
    """Of a kernel that no rule has anything to say about, but for the fields given."""
    known: dict[str, Any] = {
        "name": "scale",
        "grid": (96, 1, 1),
        "block": (128, 1, 1),
        "time_us": 10.0,
        "dram_percent": 60.0,
        "l2_percent": 20.0,
        "l1_percent": 10.0,
        "pipes_percent": {"fma": 30.0, "lsu": 90.0},
        "sm_percent": 50.0,
        "memory_percent": 60.0,
    }
    return KernelCounters(**{**known, **fields})
