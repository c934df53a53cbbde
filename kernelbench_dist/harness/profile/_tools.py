"""NVIDIA's programs that profiling runs: where they are."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path


def find_tool(name: str) -> str | None:
    """The path of "ncu", "compute-sanitizer" or "cuobjdump"; None where there is none.

    On PATH, in CUDA_HOME, in /usr/local/cuda, or in the triton package, which brings cuobjdump.
    """
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [str(Path(home, "bin")) for home in homes if home]
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
