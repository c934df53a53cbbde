"""The program that builds one request, in the working folder: `python -m` this module.

It reads request.json, lets torch compile in work/, and writes report.json. What the compilers say
goes to stdout. The library is not loaded here: that would run its static constructors.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

from kernelbench_dist.harness.build._cache import file_hash
from kernelbench_dist.harness.build._environment import names_architecture
from kernelbench_dist.harness.build._messages import file_names
from kernelbench_dist.harness.build._request import BuildRequest


def cuda_flags(request: BuildRequest) -> list[str]:
    """The submission's flags, and those that the report and profilers need."""
    flags = list(request.extra_cuda_cflags)
    if not {"-G", "--device-debug", "-lineinfo", "--generate-line-info"} & set(flags):
        flags.append("-lineinfo")
    flags.append("-Xptxas=-v")
    # torch takes every flag with these letters, as in -march, for a choice of architectures, and
    # then adds none: the result would hold code for nvcc's default alone.
    if any("arch" in flag for flag in flags) and not names_architecture(tuple(flags)):
        flags += cpp_extension._get_cuda_arch_flags([])
    return flags


def link_flags(request: BuildRequest) -> list[str]:
    """The submission's flags; the shared libstdc++; and warnings of symbols found nowhere.

    Where a compiler links the static libstdc++, two are in the process, and the first number
    written to a stream (as in an error's message) is a crash.
    """
    flags = list(request.extra_ldflags)
    if sys.platform == "linux":
        compiler = shlex.split(os.environ.get("CXX", "")) or ["c++"]
        command = [*compiler, "-print-file-name=libstdc++.so.6"]
        if "/" in subprocess.run(command, capture_output=True, text=True).stdout:
            flags.append("-l:libstdc++.so.6")
        # A warning, since Python's own symbols are found only in the program that loads it.
        flags += ["-Wl,-z,defs", "-Wl,--warn-unresolved-symbols"]
    return flags


def compile_request(request: BuildRequest, folder: Path) -> Path:
    """Let torch write and run its ninja file; returns the library."""
    folder.mkdir()
    cpp_extension._import_module_from_library = lambda *_: None
    common: dict[str, Any] = {
        "name": request.name,
        "extra_cflags": list(request.extra_cflags),
        "extra_cuda_cflags": cuda_flags(request) if request.needs_cuda else [],
        "extra_ldflags": link_flags(request),
        "extra_include_paths": list(request.extra_include_paths),
        "build_directory": str(folder),
        "verbose": True,
        "with_cuda": request.with_cuda,
        "is_python_module": request.is_python_module,
    }
    if request.uses_files:
        texts = (*request.cpp_sources, *request.cuda_sources)
        paths = [folder / name for name in file_names(request)]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        cpp_extension.load(sources=[str(path) for path in paths], **common)
    else:
        cpp_extension.load_inline(
            cpp_sources=list(request.cpp_sources),
            cuda_sources=list(request.cuda_sources) or None,
            functions=request.functions,
            with_pytorch_error_handling=request.with_pytorch_error_handling,
            no_implicit_headers=request.no_implicit_headers,
            **common,
        )
    return folder / f"{request.name}.so"


def dependencies(folder: Path) -> dict[str, str]:
    """The headers that were read, apart from those whose versions are known, with their hashes."""
    command = ["ninja", "-t", "deps"]
    listing = subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout
    known = [str(folder), str(Path(torch.__file__).parent), sysconfig.get_path("include")]
    known += ["/usr/include", "/usr/lib", *filter(None, [os.environ.get("CUDA_HOME")])]
    found = {}
    for line in listing.splitlines():
        if line.startswith("    "):
            path = os.path.realpath(folder / line.strip())
            if not any(path.startswith(f"{os.path.realpath(root)}/") for root in known):
                found[path] = file_hash(path) or ""
    return found


def main() -> int:
    folder = Path.cwd()
    request = BuildRequest.model_validate_json((folder / "request.json").read_text())
    report: dict[str, Any] = {"library": None, "error": None, "dependencies": {}}
    try:
        report["library"] = str(compile_request(request, folder / "work"))
        report["dependencies"] = dependencies(folder / "work")
    except Exception as error:
        # Where a compiler failed, its own messages say more than torch's exception.
        if not isinstance(error.__cause__, subprocess.CalledProcessError):
            traceback.print_exc()
            report["error"] = f"{type(error).__name__}: {error}"
    (folder / "report.json").write_text(json.dumps(report))
    return 0 if report["library"] else 1


if __name__ == "__main__":
    sys.exit(main())
