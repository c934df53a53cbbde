"""Each CUDA kernel of all_gather_linear beside torch.cat + F.linear, over random sizes.

What `ops.plan` chooses was fitted to such a run. It prints, for each dtype, how the choice did: its
time over the reference's, and over the best kernel's where one of ours was chosen. All is kept in
the JSON file.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelbench_dist import build_info, ops
from kernelbench_dist.timing import bench

DTYPES = ("float32", "bfloat16", "float64")
WAYS = 5  # the kernels are numbered; see kWays in csrc/cuda/all_gather_linear.h


def reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(torch.cat(x.unbind(0), -1), weight, bias)


def random_sizes(count: int, seed: int) -> list[tuple[int, int, int, int]]:
    """R, B, H, K, spread evenly over their logarithms; one H in six is not a multiple of 8."""
    rng = random.Random(seed)

    def spread(low: int, high: int) -> int:
        return round(math.exp(rng.uniform(math.log(low), math.log(high))))

    sizes: list[tuple[int, int, int, int]] = []
    while len(sizes) < count:
        R = rng.choice([1, 2, 4, 8, 16, 64])
        H = max(8, spread(8, 1024) // 8 * 8) if rng.random() < 5 / 6 else spread(5, 300)
        B, K = spread(1, 4096), spread(8, 8192)
        if 1e4 < R * B * H * K < 6e8 and R * H <= 16384:
            sizes.append((R, B, H, K))
    return sizes


def measure(size: tuple[int, int, int, int], dtype: torch.dtype) -> dict[str, Any]:
    R, B, H, K = size
    x, weight, bias = (
        torch.randn(s, device="cuda").to(dtype) for s in ((R, B, H), (K, R * H), (K,))
    )
    one = torch.ops.kernelbench_dist._all_gather_linear_by
    candidates = {"reference": reference, "chosen": ops.all_gather_linear}
    candidates |= {f"way {way}": partial(_run, one, way) for way in range(WAYS)}
    result = bench(
        candidates, x, weight, bias, rounds=8, min_time_ms=0.3, cold=False, progress=False
    )
    plan = ops.plan("all_gather_linear", x, weight, bias)
    timings = {c.name: c.warm.median_us for c in result.candidates if c.warm is not None}
    return {"size": size, "kernel": plan.kernel, "tiles": plan.tiles, "us": timings}


def _run(one: torch._ops.OpOverloadPacket, way: int, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return one(x, w, b, way)


def summary(dtype: str, rows: list[dict[str, Any]]) -> str:
    fused = [row["us"] for row in rows if row["kernel"] == "dot"]
    over_reference = [us["chosen"] / us["reference"] for us in fused]
    over_best = [us["chosen"] / min(us[f"way {way}"] for way in range(WAYS)) for us in fused]
    missed = [
        row["us"]
        for row in rows
        if row["kernel"] != "dot"
        and min(row["us"][f"way {w}"] for w in range(WAYS)) < 0.9 * row["us"]["reference"]
    ]
    mean = [math.exp(sum(map(math.log, r)) / len(r)) for r in (over_reference, over_best)]
    slower = sum(r > 1.03 for r in over_reference)
    return (
        f"{dtype}: ours at {len(fused)} of {len(rows)} sizes, {mean[0]:.2f} of the reference "
        f"(worst {max(over_reference):.2f}, {slower} above 1.03), {mean[1]:.3f} of the best way; "
        f"{len(missed)} fallbacks where some way took less than 0.9 of the reference"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=120, help="sizes a dtype")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/ways-h200.json"))
    options = parser.parse_args()
    if not build_info().cuda or not torch.cuda.is_available():
        print("nothing measured: this needs a GPU and a build with the CUDA part")
        return 0
    torch.backends.cuda.matmul.allow_tf32 = False
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    for dtype in DTYPES:
        sizes = random_sizes(options.count, options.seed)
        rows = [measure(size, getattr(torch, dtype)) for size in sizes]
        found[dtype] = rows
        print(summary(dtype, rows), flush=True)
        options.json.write_text(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
