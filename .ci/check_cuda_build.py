"""Fails where the CUDA part spills registers, lacks code for an architecture, or where a kernel for
Hopper's tensor cores does without their instruction or waits after each.

Usage: check_cuda_build.py LOG TREE

LOG is the output of a whole build with NVCC_APPEND_FLAGS=-Xptxas=-v, and TREE the source tree with
the extension that it built in place.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

# What setup.py builds by default: machine code for each, and PTX for GPUs still to come.
MACHINE_CODE = ("sm_80", "sm_90", "sm_90a")
PTX = ("sm_90",)
# The kernels that multiply by wgmma, as their mangled names have it: the length, then the name.
WGMMA_KERNELS = re.compile(r"10persistentI|11persistent3|5splitI")


def spills(log: str) -> tuple[int, list[str]]:
    """How many functions ptxas reports on, and a sentence for each that spills."""
    report = re.compile(
        r"Compiling entry function '(?P<entry>\w+)' for '(?P<target>\w+)'"
        r"|Function properties for (?P<function>\w+)"
        r"|(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    )
    count, found, target, function = 0, [], "?", "?"
    for match in report.finditer(log):
        if match["target"]:
            target = match["target"]
        elif match["function"]:
            function = match["function"]
        else:
            count += 1
            if int(match["stores"]) or int(match["loads"]):
                found.append(
                    f"{function} for {target} spills registers: {match['stores']} bytes stored,"
                    f" {match['loads']} bytes loaded"
                )
    return count, found


def serialised(log: str) -> list[str]:
    """ptxas says so, by number, where it lets no two wgmma run at a time or ignores setmaxnreg."""
    return sorted({line.strip() for line in log.splitlines() if re.search(r"\(C75\d\d\)", line)})


def find_cuobjdump() -> str:
    """cuobjdump from the toolkit, or the one in the triton package that torch brings."""
    if on_path := shutil.which("cuobjdump"):
        return on_path
    for folder in map(Path, sys.path):
        if (inside := folder / "triton/backends/nvidia/bin/cuobjdump").is_file():
            return str(inside)
    sys.exit("there is no cuobjdump, neither on PATH nor in a triton package: install either")


def missing(library: Path, files: int) -> list[str]:
    """A sentence for each architecture that some .cu file's code is missing for."""
    cuobjdump = find_cuobjdump()
    found = []
    for option, kind, wanted in (("elf", "machine code", MACHINE_CODE), ("ptx", "PTX", PTX)):
        listing = subprocess.run(
            [cuobjdump, f"--list-{option}", str(library)], capture_output=True, text=True
        )
        held = Counter(re.findall(r"\.(sm_\w+)\.(?:cubin|ptx)", listing.stdout))
        print(f"{kind}: {', '.join(f'{n} x {name}' for name, n in sorted(held.items())) or 'none'}")
        found += [
            f"{library.name} has {kind} for {name} from {held[name]} of {files} .cu files"
            for name in wanted
            if held[name] < files
        ]
    return found


def without_wgmma(library: Path) -> list[str]:
    """A sentence for each kernel that is to multiply by wgmma (HGMMA) and does not."""
    listing = subprocess.run(
        [find_cuobjdump(), "-sass", "-arch", "sm_90a", str(library)], capture_output=True, text=True
    )
    used: dict[str, bool] = {}
    target = name = ""  # it lists sm_90 too, where these kernels are empty
    for line in listing.stdout.splitlines():
        if match := re.match(r"\s*(code for|Function :) (\S+)", line):
            target, name = (match[2], "") if match[1] == "code for" else (target, match[2])
            if target == "sm_90a" and WGMMA_KERNELS.search(name):
                used[name] = False
        elif name in used and "HGMMA" in line:
            used[name] = True
    print(f"wgmma: in {sum(used.values())} of {len(used)} kernels that are to use it")
    if not used:
        return [f"{library.name} has no kernel for sm_90a that multiplies by wgmma"]
    return [f"{name} for sm_90a has no wgmma in it" for name, uses in used.items() if not uses]


def main() -> int:
    log, tree = Path(sys.argv[1]), Path(sys.argv[2])
    libraries = list(tree.glob("kernelbench_dist/_C.*.so"))
    if len(libraries) != 1:
        sys.exit(f"{tree}/kernelbench_dist holds {len(libraries)} extensions; one was to be built")
    text = log.read_text()
    count, problems = spills(text)
    print(f"ptxas: {count} functions, {len(problems)} of them spill")
    problems += serialised(text)
    if not count:
        problems.append(f"{log} holds no report of ptxas: build all anew with -Xptxas=-v")
    problems += missing(libraries[0], len(list(tree.glob("csrc/cuda/*.cu"))))
    problems += without_wgmma(libraries[0])
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
