"""Nine variants of one kernel, each judged whole, as one trail.

    python examples/compare_variants.py --trail variants.jsonl

One warp an output with 1, 4, 6, 7, 8, 14 or 16 warps a block; the same by way of shared memory; one
thread an output. All are examples/variants/variant.py with two lines changed. Which of them
differ is for the intervals to say: the trail compares each with the last and with the best.

It needs a GPU and nvcc. Without them --write FOLDER still writes the nine files.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from kernelbench_dist.harness import compile_kernel
from kernelbench_dist.harness.tools import Trail, call

PROBLEM = "level2/47"
TEMPLATE = Path(__file__).parent / "variants" / "variant.py"
# name: way, warps a block
VARIANTS = {
    **{f"warp_{warps}": ("warp", warps) for warps in (1, 4, 6, 7, 8, 14, 16)},
    "shared": ("shared", 8),
    "thread": ("thread", 4),
}
_MOST_BUILDS = 8


def source(name: str) -> str:
    """The text of a variant's submission."""
    way, warps = VARIANTS[name]
    lines = TEMPLATE.read_text().splitlines(keepends=True)
    settings = {'WAY = "warp"\n': f'WAY = "{way}"\n', "WARPS = 7\n": f"WARPS = {warps}\n"}
    missing = [line for line in settings if lines.count(line) != 1]
    if missing:
        raise ValueError(f"{TEMPLATE} has no line {missing[0]!r}")
    return "".join(settings.get(line, line) for line in lines)


def write(folder: Path) -> dict[str, Path]:
    """The nine files, by the variants' names."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.py" for name in VARIANTS}
    for name, path in paths.items():
        path.write_text(source(name))
    return paths


def compare(paths: dict[str, Path], trail: Trail, sizes: str | None, rounds: int) -> None:
    """Build all at once, then submit one after the other."""
    jobs = max(1, min(_MOST_BUILDS, (os.cpu_count() or 2) // 2))
    with ThreadPoolExecutor(jobs) as pool:
        for name, built in zip(
            paths, pool.map(lambda path: compile_kernel(path, PROBLEM), paths.values()), strict=True
        ):
            print(f"{name}: {built.verdict}: {built.reason}", file=sys.stderr)
    for path in paths.values():
        arguments = {"source": str(path), "problem": PROBLEM, "rounds": rounds}
        if sizes is not None:
            arguments["sizes"] = sizes
        answer = call("submit_kernel", arguments, trail=trail)
        print(answer.get("error") or answer["report"], end="\n\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trail", default="variants.jsonl", help="default: %(default)s")
    parser.add_argument("--write", metavar="FOLDER", help="where the files go; default: variants")
    parser.add_argument("--sizes", help="as B=25,K=3, or a name; default: the problem's own")
    parser.add_argument("--rounds", type=int, default=20, help="default: %(default)s")
    options = parser.parse_args()
    paths = write(Path(options.write or "variants"))
    if not torch.cuda.is_available():
        why = "this torch has no CUDA" if torch.version.cuda is None else "there is no GPU here"
        print(f"compare_variants.py: the variants are CUDA kernels, and {why}", file=sys.stderr)
        print(f"written: {', '.join(map(str, paths.values()))}", file=sys.stderr)
        return 3
    trail = Trail(options.trail)
    compare(paths, trail, options.sizes, options.rounds)
    print(trail)
    return 0


if __name__ == "__main__":
    sys.exit(main())
