"""NVIDIA's programs that profiling runs: where they are."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path


def find_tool(name: str) -> str | None:
    """The path of "ncu", "compute-sanitizer" or "cuobjdump"; None where there is none.

    On PATH, in the toolkit, where Nsight Compute is installed by itself (its newest version), or in
    the package triton, which brings cuobjdump.
    """
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    parts = ("bin", "compute-sanitizer")
    folders = [str(Path(home, part)) for home in homes if home for part in parts]
    folders += sorted(map(str, Path("/opt/nvidia/nsight-compute").glob("*")), reverse=True)
    triton = importlib.util.find_spec("triton")
    for place in (triton.submodule_search_locations or []) if triton else []:
        folders.append(str(Path(place, "backends", "nvidia", "bin")))
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))


def lacks(name: str) -> str:
    """What to say where a tool is not found."""
    package = {
        "ncu": "Nsight Compute",
        "compute-sanitizer": "the CUDA toolkit",
        "cuobjdump": "the CUDA toolkit, or the package triton",
    }[name]
    return f"{name} was not found on PATH or in CUDA_HOME: it comes with {package}"
