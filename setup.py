"""Builds kernelbench_dist._C: the operators' bindings and, where a CUDA toolkit is, their kernels.

KERNELBENCH_DIST_CUDA=auto|0|1   auto (the default) builds the CUDA part when torch is a CUDA build
                                 and its toolkit is found; 0 never does; 1 stops where it cannot.
TORCH_CUDA_ARCH_LIST             architectures: "8.0;9.0a;9.0+PTX" and the present GPU's, if unset.
CUDA_HOME                        the toolkit, where nvcc on PATH does not lead to it.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, NoReturn

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

try:
    import torch
    from torch.utils import cpp_extension
except ImportError as error:
    torch, cpp_extension, NO_TORCH = None, None, str(error)  # type: ignore[assignment]

NAME = "kernelbench_dist._C"
DEFAULT_ARCHITECTURES = "8.0;9.0a;9.0+PTX"
CXX_FLAGS = ["-O3", "-std=c++20", "-Wall", "-fvisibility=hidden"]
# The shared libstdc++, which torch uses: where a compiler links the static one, two are in the
# process, and the first number written to a stream (as in an error's message) is a crash.
LINK_FLAGS = ["-l:libstdc++.so.6"] if sys.platform == "linux" else []
NVCC_FLAGS = ["-O3", "-std=c++20", "--threads=2", "-Xcompiler=-fvisibility=hidden"]


def refuse(sentence: str) -> NoReturn:
    sys.exit(f"kernelbench_dist: {sentence}.")


def nvcc(program: Path | str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(program), *arguments], capture_output=True, text=True)


def find_toolkit() -> tuple[Path | None, str]:
    """The toolkit to build the CUDA part with, or None and why there is none."""
    if torch.version.cuda is None:
        return None, f"torch {torch.__version__} is not a CUDA build: install one that is"
    named = os.environ.get("CUDA_HOME")
    folders = f"{named}/bin" if named else os.environ.get("PATH", "") + ":/usr/local/cuda/bin"
    program = shutil.which("nvcc", path=folders)
    if program is None:
        where = f"in CUDA_HOME={named}" if named else "on PATH and CUDA_HOME is not set"
        return None, f"there is no nvcc {where}: install the CUDA toolkit and set CUDA_HOME to it"
    # It may be a wrapper script outside the toolkit: a dry run prints the TOP that it works from.
    dry_run = nvcc(program, "--dryrun", "-x", "cu", os.devnull)
    top = re.search(r"^#\$ TOP=(.+)$", dry_run.stderr, re.MULTILINE)
    home = Path(top[1].strip()).resolve() if top else None
    if home is None or not (home / "bin/nvcc").is_file():
        return None, f"{program} does not lead to a CUDA toolkit: set CUDA_HOME to one"
    release = re.search(r"release ([\d.]+)", nvcc(home / "bin/nvcc", "--version").stdout)
    version = release[1] if release else "of an unknown version"
    if version.split(".")[0] != torch.version.cuda.split(".")[0]:  # another minor will do
        refuse(
            f"the toolkit at {home} is CUDA {version} and torch {torch.__version__} is built for"
            f" CUDA {torch.version.cuda}: set CUDA_HOME to a toolkit of the same major version, or"
            " KERNELBENCH_DIST_CUDA=0 for the CPU part alone"
        )
    return home, ""


def gencode(entry: str) -> list[str]:
    """nvcc's flags for one architecture. Where they are given, torch adds no list of its own."""
    number = entry.removesuffix("+PTX").replace(".", "")
    codes = ["sm", "compute"] if entry.endswith("+PTX") else ["sm"]
    return [f"-gencode=arch=compute_{number},code={code}_{number}" for code in codes]


def architectures(home: Path) -> list[str]:
    """Architectures as TORCH_CUDA_ARCH_LIST writes them, each one that this nvcc compiles for."""
    codes = nvcc(home / "bin/nvcc", "--list-gpu-code").stdout
    known = [".".join(number) for number in re.findall(r"\bsm_(\d+)(\d)\b", codes)]
    listed = os.environ.get("TORCH_CUDA_ARCH_LIST")
    entries = re.split(r"[;,\s]+", (listed or DEFAULT_ARCHITECTURES).strip())
    if not listed and torch.cuda.is_available():
        present = "{}.{}".format(*torch.cuda.get_device_capability())
        if present in known and not any(entry.startswith(present) for entry in entries):
            entries.append(present)
    for entry in entries:
        well_formed = re.fullmatch(r"\d+\.\d[af]?(\+PTX)?", entry)
        dry_run = ("--dryrun", *gencode(entry), "-x", "cu", os.devnull)
        if not well_formed or nvcc(home / "bin/nvcc", *dry_run).returncode:
            refuse(
                f"TORCH_CUDA_ARCH_LIST={listed!r} holds {entry!r}, which {home}/bin/nvcc does not"
                f" compile for: list numbers out of {', '.join(known)}, each with `a` or `+PTX`"
                f" after it if need be, as in {DEFAULT_ARCHITECTURES!r}"
            )
    return entries


def extension_and_stamp() -> tuple[Extension, dict[str, Any]]:
    """The one extension, and what it is built for: the package checks that at import."""
    wanted = os.environ.get("KERNELBENCH_DIST_CUDA") or "auto"
    if wanted not in ("auto", "0", "1"):
        refuse(f"KERNELBENCH_DIST_CUDA={wanted!r} is not known: set it to auto, 0 or 1")
    asked_not_to = (None, "KERNELBENCH_DIST_CUDA=0 asked for a CPU build")
    home, reason = asked_not_to if wanted == "0" else find_toolkit()
    if wanted == "1" and home is None:
        refuse(f"KERNELBENCH_DIST_CUDA=1 and the CUDA part cannot be built: {reason}")
    stamp: dict[str, Any] = {"torch": torch.__version__, "cuda": None, "architectures": []}
    sources = sorted(map(str, Path("csrc").glob("*/*.cpp")))
    include = str(Path("csrc").resolve())
    options: dict[str, Any] = {"include_dirs": [include], "extra_link_args": LINK_FLAGS}
    if home is None:
        print(f"kernelbench_dist: building the CPU part alone: {reason}.", file=sys.stderr)
        stamp["no_cuda_because"] = reason
        options["extra_compile_args"] = {"cxx": CXX_FLAGS}
        return cpp_extension.CppExtension(NAME, sources, **options), stamp
    stamp |= {"cuda": torch.version.cuda, "architectures": architectures(home)}
    codes = dict.fromkeys(flag for entry in stamp["architectures"] for flag in gencode(entry))
    flags = {"cxx": [*CXX_FLAGS, "-DKERNELBENCH_DIST_CUDA"], "nvcc": [*NVCC_FLAGS, *codes]}
    sources += sorted(map(str, Path("csrc/cuda").glob("*.cu")))
    cpp_extension.CUDA_HOME = str(home)
    return cpp_extension.CUDAExtension(NAME, sources, extra_compile_args=flags, **options), stamp


class Build(cpp_extension.BuildExtension if torch else build_ext):  # type: ignore[misc]
    """Decides what to build only when it builds: metadata and the sdist need no torch."""

    def run(self) -> None:
        if torch is None:
            refuse(
                f"its extension is built against the torch that will run it, and there is none here"
                f" ({NO_TORCH}): install torch, then `pip install --no-build-isolation .`"
            )
        extension, stamp = extension_and_stamp()
        vars(self.extensions[0]).update(vars(extension))
        text = json.dumps(stamp, indent=1) + "\n"
        # Kept, so that ninja compiles only what has changed; and one for each stamp, since ninja
        # does not see that torch's headers became another version.
        self.build_temp = f"build/temp-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        super().run()
        Path(self.get_ext_fullpath(NAME)).with_name("_build_stamp.json").write_text(text)


if __name__ == "__main__":  # true under pip too; the tests import this file
    # torch looks for ninja on PATH alone, and this environment may not be the active one.
    os.environ["PATH"] = f"{sysconfig.get_path('scripts')}:{os.environ.get('PATH', os.defpath)}"
    setup(
        packages=[*find_packages(include=["kernelbench_dist*"]), "kernelbench_dist.problems"],
        ext_modules=[Extension(NAME, sources=[])],
        cmdclass={"build_ext": Build},
    )
