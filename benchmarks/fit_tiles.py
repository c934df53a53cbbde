"""Fits what the tiles of all_gather_linear cost, for csrc/bindings/tile_costs.h.

    python benchmarks/fit_tiles.py benchmarks/results/tiles-nvidia-h200-2026-12-04.json

It reads what `all_gather_linear_ways.py --large` kept and needs no GPU. The model is that of
csrc/bindings/tile_choice.h. For each dtype it prints how good the model is, and how well the choice
that follows from it does at the sizes it was fitted to; other sizes, from `--seed`, say more.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelbench_dist import build_info

HEADER = Path(__file__).resolve().parent.parent / "csrc" / "bindings" / "tile_costs.h"
NAMES = {"float16": "kFloat16Costs", "bfloat16": "kBFloat16Costs", "tf32": "kTf32Costs"}
KINDS = ("persistent ", "split ")
NEVER = 1e30  # nanoseconds of a way that was never measured


@dataclass
class Costs:
    """As in tile_choice.h: nanoseconds, (launch, tile, step) for each way."""

    ways: dict[int, tuple[float, ...]]
    gather_launch: float
    gather_byte: float
    library: float


def least_squares(features: Sequence[Sequence[float]], times: Sequence[float]) -> tuple[float, ...]:
    """Coefficients of 0 or more with the least squares of the relative errors."""
    a, t = (torch.tensor(v, dtype=torch.float64) for v in (features, times))
    a = a / t[:, None]
    best, least = (0.0,) * a.shape[1], math.inf
    # Few coefficients: each set of them that is not zero is tried.
    for count in range(1, a.shape[1] + 1):
        for used in itertools.combinations(range(a.shape[1]), count):
            part = a[:, used]
            solved: Tensor = torch.linalg.lstsq(
                part, torch.ones(len(t), 1, dtype=torch.float64), driver="gelsd"
            ).solution[:, 0]
            error = float(((part @ solved - 1) ** 2).sum())
            if float(solved.min()) >= 0 and error < least:
                least = error
                values = dict(zip(used, solved.tolist(), strict=True))
                best = tuple(values.get(i, 0.0) for i in range(a.shape[1]))
    return best


def work(size: Sequence[int], dtype: str, way: int) -> tuple[int, int]:
    """Rounds and steps, as the choice counts them."""
    R, B, H, K = size
    of = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    x = torch.empty(R, B, H, dtype=of, device="meta")
    weight = torch.empty(K, R * H, dtype=of, device="meta")
    rounds, steps = torch.ops.kernelbench_dist._all_gather_linear_way_work(x, weight, way)
    return rounds, steps


def predicted(costs: Costs, size: Sequence[int], dtype: str) -> dict[int, float]:
    found = {}
    for way, (launch, tile, step) in costs.ways.items():
        rounds, steps = work(size, dtype, way)
        found[way] = launch + rounds * (tile + steps * step)
    return found


def gathered_bytes(size: Sequence[int], dtype: str) -> int:
    R, B, H, _ = size
    return R * B * H * (4 if dtype == "tf32" else 2)


def fit(rows: Sequence[dict[str, Any]], dtype: str) -> Costs:
    names = torch.ops.kernelbench_dist._all_gather_linear_ways()
    costs = Costs({}, 0.0, 0.0, 1.0)
    for way, name in enumerate(names):
        measured = [(row["size"], 1e3 * row["us"][name]) for row in rows if name in row["us"]]
        if not name.startswith(KINDS) or len(measured) < 4:
            continue
        counted = [work(size, dtype, way) for size, _ in measured]
        features: list[tuple[float, ...]] = [(1.0, n, n * steps) for n, steps in counted]
        costs.ways[way] = least_squares(features, [time for _, time in measured])
    if not costs.ways:
        sys.exit(f"{dtype}: no tile was measured at 4 sizes or more")
    # What the library takes is compared where a tile can run.
    seen = [row for row in rows if any(names[way] in row["us"] for way in costs.ways)]
    features = []
    for row in seen:
        best = min(predicted(costs, row["size"], dtype).values())
        features.append((1.0, gathered_bytes(row["size"], dtype), best))
    reference = least_squares(features, [1e3 * row["us"]["reference"] for row in seen])
    costs.gather_launch, costs.gather_byte, costs.library = reference
    return costs


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def report(costs: Costs, rows: Sequence[dict[str, Any]], dtype: str) -> str:
    """How the model and its choice do at these sizes."""
    names = torch.ops.kernelbench_dist._all_gather_linear_ways()
    off, over_reference, over_best = [], [], []
    sizes = 0
    for row in rows:
        times = predicted(costs, row["size"], dtype)
        here = {way: 1e3 * row["us"][names[way]] for way in times if names[way] in row["us"]}
        if not here:
            continue
        sizes += 1
        off += [max(times[way] / time, time / times[way]) for way, time in here.items()]
        way = min(times, key=lambda way: times[way])
        reference = costs.gather_launch + costs.library * times[way]
        reference += costs.gather_byte * gathered_bytes(row["size"], dtype)
        if times[way] < reference and way in here:
            over_reference.append(here[way] / (1e3 * row["us"]["reference"]))
            over_best.append(here[way] / min(here.values()))
    return (
        f"{dtype}: the model is off by {geometric_mean(off):.2f} (worst {max(off):.2f}); tiles"
        f" chosen at {len(over_best)} of {sizes} sizes, {geometric_mean(over_reference):.3f} of the"
        f" reference (worst {max(over_reference, default=math.nan):.2f}),"
        f" {geometric_mean(over_best):.3f} of the best way"
    )


def header(fitted: dict[str, Costs], said: str) -> str:
    def number(value: float) -> str:
        return f"{value:.6e}f"

    names = torch.ops.kernelbench_dist._all_gather_linear_ways()
    tiles = [way for way, name in enumerate(names) if name.startswith(KINDS)]
    lines = [
        "// What a tile costs by each way, measured. Written by benchmarks/fit_tiles.py.",
        "//",
        f"// {said}",
        "// A dtype without costs is one for which no tile is chosen.",
        "#pragma once",
        "",
        "#include <optional>",
        "",
        '#include "bindings/tile_choice.h"',
        "",
        "namespace kernelbench_dist {",
        "",
        "// clang-format off",
    ]
    for dtype, name in NAMES.items():
        if dtype not in fitted:
            lines.append(f"inline constexpr std::optional<TileCosts> {name};")
            continue
        costs = fitted[dtype]
        lines.append(f"inline constexpr std::optional<TileCosts> {name} = TileCosts{{{{")
        for way in tiles:
            numbers = costs.ways.get(way, (NEVER, 0.0, 0.0))
            lines.append(f"    {{{', '.join(map(number, numbers))}}},")
        reference = (costs.gather_launch, costs.gather_byte, costs.library)
        lines.append(f"}}, {', '.join(map(number, reference))}}};")
    return "\n".join([*lines, "// clang-format on", "", "}  // namespace kernelbench_dist", ""])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="what all_gather_linear_ways.py --large kept")
    parser.add_argument("--check", action="store_true", help="print only; write nothing")
    options = parser.parse_args(argv)
    if not build_info().extension:
        parser.error("the ways are in the extension, and it is not built")
    try:
        data = json.loads(options.run.read_text())
    except (OSError, ValueError) as error:
        parser.error(f"{options.run}: {error}")
    dtypes = [dtype for dtype in NAMES if dtype in data]
    if not dtypes:
        parser.error(f"{options.run}: holds none of {', '.join(NAMES)}")
    fitted = {dtype: fit(data[dtype], dtype) for dtype in dtypes}
    for dtype, costs in fitted.items():
        print(report(costs, data[dtype], dtype))
    if not options.check:
        said = f"{data['device']}, torch {data['torch']}, {data['date']}: {options.run.name}."
        HEADER.write_text(header(fitted, said))
        print(f"written: {HEADER}; build anew to have it used")
    return 0


if __name__ == "__main__":
    sys.exit(main())
