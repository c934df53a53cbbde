"""Each CUDA kernel of all_gather_linear beside torch.cat + F.linear, over random sizes.

What `ops.plan` chooses was fitted to such a run. It prints, for each dtype, how the choice did: its
time over the reference's, and over the best kernel's where one of ours was chosen. All is kept in
a file in benchmarks/results/.

    python benchmarks/all_gather_linear_ways.py --dtypes float16,tf32
    python benchmarks/all_gather_linear_ways.py --large --dtypes float16,bfloat16,tf32

`--large` takes sizes for the tensor cores, and the benchmark's own; `fit_tiles.py` reads what it
keeps, and writes the costs by which `ops.plan` chooses among the tiles.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _setup import DTYPES, commit, dtype_named, parse_dtypes, result_path
from _tables import SIZES
from torch import Tensor

from kernelbench_dist import build_info, ops
from kernelbench_dist.timing import bench

SMALL = 6e8  # products; beyond, `dot` has no chance and is left out


def reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(torch.cat(x.unbind(0), -1), weight, bias)


def random_sizes(count: int, seed: int, *, large: bool = False) -> list[tuple[int, int, int, int]]:
    """R, B, H, K, spread evenly over their logarithms; one H in six is not a multiple of 8."""
    rng = random.Random(seed)
    least, most, longest = (SMALL, 3e11, 65536) if large else (1e4, SMALL, 16384)

    def spread(low: int, high: int) -> int:
        return round(math.exp(rng.uniform(math.log(low), math.log(high))))

    sizes: list[tuple[int, int, int, int]] = []
    while len(sizes) < count:
        R = rng.choice([1, 2, 4, 8, 16, 64])
        H = max(8, spread(8, 1024) // 8 * 8) if rng.random() < 5 / 6 else spread(5, 300)
        B, K = spread(1, 16384 if large else 4096), spread(8, 8192)
        if least < R * B * H * K < most and longest >= R * H:
            sizes.append((R, B, H, K))
    return sizes


def measure(size: tuple[int, int, int, int], dtype: torch.dtype, *, quick: bool) -> dict[str, Any]:
    R, B, H, K = size
    x, weight, bias = (
        torch.randn(s, device="cuda").to(dtype) for s in ((R, B, H), (K, R * H), (K,))
    )
    ours = torch.ops.kernelbench_dist
    candidates = {"reference": reference, "chosen": ops.all_gather_linear}
    for way, name in enumerate(ours._all_gather_linear_ways()):
        if name.startswith("dot ") and R * B * H * K > SMALL:
            continue
        if not ours._all_gather_linear_way_refusal(x, weight, bias, way):
            candidates[name] = partial(_run, ours._all_gather_linear_by, way)
    result = bench(
        candidates,
        *(x, weight, bias),
        rounds=8,
        min_time_ms=0.1 if quick else 0.3,
        cold=False,
        progress=False,
    )
    plan = ops.plan("all_gather_linear", x, weight, bias)
    timings = {c.name: c.warm.median_us for c in result.candidates if c.warm is not None}
    return {"size": size, "kernel": plan.kernel, "tiles": plan.tiles, "us": timings}


def _run(one: torch._ops.OpOverloadPacket, way: int, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return one(x, w, b, way)


def summary(dtype: str, rows: list[dict[str, Any]]) -> str:
    def best(us: dict[str, float]) -> float:
        ways = us.keys() - {"reference", "chosen"}
        return min((us[name] for name in ways), default=math.inf)

    fused = [row["us"] for row in rows if row["kernel"] != "fallback"]
    others = [row["us"] for row in rows if row["kernel"] == "fallback"]
    missed = sum(best(us) < 0.9 * us["reference"] for us in others)
    parts = [f"{dtype}: ours at {len(fused)} of {len(rows)} sizes"]
    if fused:
        over_reference = [us["chosen"] / us["reference"] for us in fused]
        over_best = [us["chosen"] / best(us) for us in fused]
        mean = [math.exp(sum(map(math.log, r)) / len(r)) for r in (over_reference, over_best)]
        slower = sum(r > 1.03 for r in over_reference)
        parts[0] += (
            f", {mean[0]:.2f} of the reference (worst {max(over_reference):.2f}, {slower} above "
            f"1.03), {mean[1]:.3f} of the best way"
        )
    parts.append(f"{missed} fallbacks where some way took less than 0.9 of the reference")
    return "; ".join(parts)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, help="random sizes a dtype; default 120, --large 40")
    parser.add_argument("--large", action="store_true", help="sizes for the tensor cores")
    parser.add_argument("--seed", type=int, default=7, help="of the sizes; default %(default)s")
    parser.add_argument("--dtypes", type=parse_dtypes, help=f"of {','.join(DTYPES)}")
    parser.add_argument("--json", type=Path, help="default: a file in benchmarks/results/")
    parser.add_argument("--quick", action="store_true", help="to try it out: rough, and not kept")
    options = parser.parse_args(argv)
    if options.count is None:
        options.count = 4 if options.quick else 40 if options.large else 120
    if options.count < 1:
        parser.error(f"--count {options.count}: 1 or more is accepted")
    if options.json is not None and not options.json.resolve().parent.is_dir():
        parser.error(f"{options.json}: there is no folder {options.json.resolve().parent}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    if not build_info().cuda or not torch.cuda.is_available():
        print("nothing measured: this needs a GPU and a build with the CUDA part")
        return 0
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
    }
    path = options.json
    if path is None and not options.quick:
        path = result_path("tiles" if options.large else "ways", found["device"], found["date"])
    sizes = random_sizes(options.count, options.seed, large=options.large)
    if options.large:
        sizes += SIZES
    for name in options.dtypes or DTYPES:
        with dtype_named(name) as (dtype, _):
            rows = [measure(size, dtype, quick=options.quick) for size in sizes]
        found[name] = rows
        print(summary(name, rows), flush=True)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
