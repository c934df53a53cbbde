"""The tools that a build uses, as far as they make it another, and why none is possible."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch

DEFAULT_ARCHITECTURES = "9.0a"
# What torch, g++, ld and nvcc read, apart from what is in the other fields.
_VARIABLES = (
    "CC",
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "C_INCLUDE_PATH",
    "LIBRARY_PATH",
    "NVCC_APPEND_FLAGS",
    "NVCC_PREPEND_FLAGS",
    "NVCC_CCBIN",
    "PYTORCH_NVCC",
)


@dataclass(frozen=True)
class Environment:
    """Compilers and versions; None and "" where there is none. Its fields are part of the key."""

    torch_version: str
    torch_cuda: str | None
    python: str
    machine: str
    cxx: str | None
    cxx_version: str
    cuda_home: str | None = None
    nvcc_version: str = ""
    architectures: str = ""
    variables: tuple[tuple[str, str], ...] = ()


def current_environment(with_cuda: bool) -> Environment:
    """What a build would use now; the parts for CUDA are looked for only where asked."""
    command = shlex.split(os.environ.get("CXX", "")) or ["c++"]  # it may be "ccache g++"
    cxx = shutil.which(command[0])
    home = _toolkit() if with_cuda and torch.version.cuda else None
    return Environment(
        torch_version=torch.__version__,
        torch_cuda=torch.version.cuda,
        python=f"{sys.version.split()[0]} {sysconfig.get_config_var('SOABI')}",
        machine=f"{platform.machine()} {_cpu_flags()}",
        cxx=cxx,
        cxx_version=_output(*command, "--version") if cxx else "",
        cuda_home=home,
        nvcc_version=_output(f"{home}/bin/nvcc", "--version") if home else "",
        architectures=_architectures() if with_cuda else "",
        variables=tuple((name, os.environ[name]) for name in _VARIABLES if name in os.environ),
    )


def problem(environment: Environment, with_cuda: bool, flags: tuple[str, ...] = ()) -> str | None:
    """Why this machine cannot build, in one sentence; None where nothing speaks against it.

    `flags` are those for nvcc: where they name an architecture, the list is not used.
    """
    if environment.cxx is None:
        name = os.environ.get("CXX", "c++")
        return f"there is no C++ compiler {name!r}: install g++, or set CXX to a compiler"
    if not with_cuda:
        return None
    if environment.torch_cuda is None:
        return (
            f"torch {environment.torch_version} is not a CUDA build, so that CUDA sources cannot be"
            " compiled, whatever CUDA_HOME is: install a CUDA build of torch"
        )
    if environment.cuda_home is None:
        named = os.environ.get("CUDA_HOME")
        where = f"in CUDA_HOME={named}" if named else "on PATH and CUDA_HOME is not set"
        return f"there is no CUDA toolkit {where}: install one and set CUDA_HOME to it"
    release = re.search(r"release ([\d.]+)", environment.nvcc_version)
    if release and release[1].split(".")[0] != environment.torch_cuda.split(".")[0]:
        return (
            f"the toolkit at {environment.cuda_home} is CUDA {release[1]} and torch"
            f" {environment.torch_version} is built for CUDA {environment.torch_cuda}: set"
            " CUDA_HOME to a toolkit of the same major version"
        )
    return None if names_architecture(flags) else _unknown_architecture(environment)


def names_architecture(flags: tuple[str, ...]) -> bool:
    """Whether flags for nvcc say which architectures to compile for."""
    pattern = r"(-gencode|--generate-code|-arch|--gpu-architecture)(=.*)?"
    return any(re.fullmatch(pattern, flag) for flag in flags)


def _unknown_architecture(environment: Environment) -> str | None:
    for entry in re.split(r"[; ]", environment.architectures):
        number = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", entry)
        named = re.fullmatch(r"[A-Z][a-z]+(\+(Tegra|Tesla))?", entry)  # torch knows such names
        if named:
            continue
        if number:
            code = f"compute_{number[1]}{number[2]}{number[3]}"
            probe = ("--dryrun", f"-gencode=arch={code},code={code}", "-x", "cu", os.devnull)
            if _run(f"{environment.cuda_home}/bin/nvcc", *probe).returncode == 0:
                continue
        return (
            f"TORCH_CUDA_ARCH_LIST={environment.architectures!r} holds {entry!r}, which"
            f" {environment.cuda_home}/bin/nvcc does not compile for: list numbers as in"
            " '8.0;9.0a;9.0+PTX' that it knows (nvcc --list-gpu-arch)"
        )
    return None


def _architectures() -> str:
    """TORCH_CUDA_ARCH_LIST, else the devices', else a default: without a GPU torch needs one."""
    if listed := os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return listed
    found = set()
    if torch.version.cuda and torch.cuda.is_available():
        found = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    # wgmma, tcgen05 and their kin need the "a" targets, which only these two families have.
    special = {(9, 0), (10, 0)}
    entries = [f"{major}.{minor}{'a' * ((major, minor) in special)}" for major, minor in found]
    return ";".join(sorted(entries)) or DEFAULT_ARCHITECTURES


def _toolkit() -> str | None:
    """The folder of the CUDA toolkit. nvcc on PATH may be a script outside it, hence the dry run:
    it prints the TOP that nvcc works from."""
    named = os.environ.get("CUDA_HOME")
    search = f"{named}/bin" if named else os.environ.get("PATH", "") + ":/usr/local/cuda/bin"
    program = shutil.which("nvcc", path=search)
    if program is None:
        return None
    top = re.search(
        r"^#\$ TOP=(.+)$",
        _run(program, "--dryrun", "-x", "cu", os.devnull).stderr,
        re.MULTILINE,
    )
    home = Path(top[1].strip()).resolve() if top else None
    return str(home) if home and (home / "bin/nvcc").is_file() else None


def _cpu_flags() -> str:
    """What -march=native would compile for."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return flags[1].strip() if flags else ""


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def _output(*command: str) -> str:
    return f"{shlex.join(command)}\n{_run(*command).stdout}"
