"""all_gather_linear against torch.cat + Linear, over sizes and dtypes, in one process.

For each size and dtype: the reference, the Linear alone on a tensor that was gathered before, and
the fused operator. At the size of problems/level2/47, in float32, also two simple kernels as
baselines (one_warp_per_output.cu, compiled here), the eager call, and forward + backward. The last
lines compare what was found with what is asked of the operator. docs/benchmarks.md says how it is
measured.

    python benchmarks/all_gather_linear.py --markdown table.md --plot ratio.png

Exit code: 0; 1 if a result is wrong or, in a full run on a GPU, a check fails; 2 for bad input.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from _baselines import compile_baselines
from _setup import (
    DTYPES,
    commit,
    dtype_named,
    file_names_only,
    output_of,
    parse_dtypes,
    result_path,
)
from _tables import (
    LIMIT,
    NOMINAL,
    SIZES,
    Cell,
    Extra,
    Size,
    checks_of,
    kinds,
    markdown,
    median,
    parse_sizes,
    plot,
    show,
)
from torch import Tensor

from kernelbench_dist import ops
from kernelbench_dist.timing import BenchResult, bench

SCHEMA = "kernelbench_dist.benchmarks.all_gather_linear/1"
AGAIN_UNTIL_S = 200.0  # cells over the limit are measured again, as long as there is time

Function: TypeAlias = Callable[[], Any]


# The problem


class Tensors:
    def __init__(self, size: Size, dtype: torch.dtype, device: torch.device) -> None:
        R, B, H, K = size
        generator = torch.Generator(device).manual_seed(9)

        def normal(*shape: int) -> Tensor:
            values = torch.randn(*shape, generator=generator, device=device, dtype=torch.float32)
            return values.to(dtype)

        self.x = normal(R, B, H)
        self.weight = normal(K, R * H) / math.sqrt(R * H)
        self.bias = normal(K)
        self.dy = normal(B, K)
        self.gathered = torch.cat(self.x.unbind(0), -1)

    def reference(self) -> Tensor:
        return F.linear(torch.cat(self.x.unbind(0), -1), self.weight, self.bias)

    def linear(self) -> Tensor:
        return F.linear(self.gathered, self.weight, self.bias)

    def fused(self) -> Tensor:
        return ops.all_gather_linear(self.x, self.weight, self.bias)

    def candidates(self) -> dict[str, Function]:
        return {"reference": self.reference, "Linear alone": self.linear, "fused": self.fused}

    def share(self, y: Tensor, eps: float) -> float:
        """The largest error of up to 64 rows over its bound, 4 * eps * sum of |x| |w| + |bias|."""
        rows = torch.linspace(0, len(y) - 1, min(len(y), 64), device=y.device).round().long()
        x, weight, bias = self.gathered[rows].double(), self.weight.double(), self.bias.double()
        error = (y[rows].double() - (x @ weight.T + bias)).abs()
        bound = 4 * eps * (x.abs() @ weight.abs().T + bias.abs())
        share: float = (error / bound).nan_to_num(nan=math.inf).max().item()
        return share


# Measuring


def measure_cell(size: Size, name: str, options: argparse.Namespace) -> Cell:
    with dtype_named(name) as (dtype, eps), torch.no_grad():
        tensors = Tensors(size, dtype, options.device)
        return Cell(
            size,
            name,
            ops.plan("all_gather_linear", tensors.x, tensors.weight, tensors.bias),
            tensors.share(tensors.fused(), eps),
            time_candidates(tensors, options, rounds=50 if size.products < 1e10 else 30),
        )


def measure_again(cell: Cell, options: argparse.Namespace) -> None:
    with dtype_named(cell.dtype) as (dtype, _), torch.no_grad():
        tensors = Tensors(cell.size, dtype, options.device)
        cell.second = time_candidates(tensors, options, rounds=2 * cell.first.rounds)


def time_candidates(tensors: Tensors, options: argparse.Namespace, rounds: int) -> BenchResult:
    return bench(
        tensors.candidates(),
        device=options.device,
        rounds=10 if options.quick else rounds,
        min_time_ms=0.2 if options.quick else 1.0,
        progress=False,
    )


def is_over_limit(cell: Cell) -> bool:
    return any(cell.result.ratio("fused", kind).ratio > LIMIT for kind in kinds(cell.result))


def measure_extra(baselines: Any | None, options: argparse.Namespace) -> Extra:
    """The nominal size in float32: our simple kernels, the eager call, forward + backward."""
    how: dict[str, Any] = {
        "device": options.device,
        "rounds": 10 if options.quick else 100,
        "min_time_ms": 0.2 if options.quick else 1.0,
        "progress": False,
    }
    with dtype_named("float32") as (dtype, eps):
        t = Tensors(NOMINAL, dtype, options.device)
        args = (t.x, t.weight, t.bias)
        best: BenchResult | None = None
        with torch.no_grad():
            versions = t.candidates()
            if baselines is not None:
                versions["one warp, any sizes"] = lambda: baselines.any_sizes(*args)
                versions["one warp, fixed sizes"] = lambda: baselines.fixed_sizes(*args)
            wrong = [name for name, version in versions.items() if t.share(version(), eps) > 1]
            kernels = bench(versions, **how)
            if baselines is not None:
                ours = [name for name in versions if name.startswith("one warp")]
                better = min(ours, key=lambda name: median(kernels, name, "warm"))
                best = bench({name: versions[name] for name in (better, "fused")}, **how)
        for tensor in args:
            tensor.requires_grad_()

        def step(forward: Callable[[], Tensor]) -> Function:
            def run() -> None:
                for tensor in args:
                    tensor.grad = None
                forward().backward(t.dy)

            return run

        both = {"reference": step(t.reference), "fused": step(t.fused)}
        training = bench(both, warm=False, cold=False, **how)
    return Extra(kernels, best, training, wrong)


# The command line


def environment(result: BenchResult) -> dict[str, Any]:
    found = asdict(result.environment)
    found["commit"] = commit()
    if found["driver"] is None and result.environment.device.startswith("cuda"):
        query = output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        found["driver"] = query.partition("\n")[0] or None
    return found


def heading_of(found: dict[str, Any]) -> str:
    parts = [found["device_name"]]
    if found["device"].startswith("cuda"):
        parts.append(f"driver {found['driver'] or 'unknown'}, CUDA {found['cuda']}")
    parts += [f"torch {found['torch']}", found["started_at"], f"commit {found['commit'][:12]}"]
    return " | ".join(parts)


def _letters(size: Size) -> dict[str, int]:
    return dict(zip("RBHK", size, strict=True))


def as_dict(cell: Cell) -> dict[str, Any]:
    return {
        "size": _letters(cell.size),
        "dtype": cell.dtype,
        "plan": asdict(cell.plan),
        "share_of_error_bound": cell.share if math.isfinite(cell.share) else None,
        "first": cell.first.to_dict(),
        "second": None if cell.second is None else cell.second.to_dict(),
    }


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if on_gpu else "cpu")
    parser.add_argument("--sizes", type=parse_sizes, help=f"such as {SIZES[0]},{SIZES[1]}")
    parser.add_argument("--dtypes", type=parse_dtypes, help=f"of {','.join(DTYPES)}")
    parser.add_argument("--json", type=Path, help="default: a file in benchmarks/results/")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--quick", action="store_true", help="to try it out: rough, and not kept")
    options = parser.parse_args(argv)
    if options.device == "cuda" and not on_gpu:
        parser.error("--device cuda: torch sees no CUDA device here")
    on_gpu = options.device == "cuda"
    options.device = torch.device(f"cuda:{torch.cuda.current_device()}" if on_gpu else "cpu")
    if options.sizes is None:
        limit = (1e10 if on_gpu else 1e7) if options.quick else (1e12 if on_gpu else 1e8)
        options.sizes = [size for size in SIZES if size.products <= limit]
    if options.dtypes is None:
        options.dtypes = [name for name in DTYPES if on_gpu or name != "tf32"]
    if "tf32" in options.dtypes and not on_gpu:
        parser.error("tf32 is a way for CUDA devices to multiply")
    for path in (options.json, options.markdown, options.plot):
        if path is not None and not path.resolve().parent.is_dir():
            parser.error(f"{path}: there is no folder {path.resolve().parent}")
    if options.plot is not None:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            parser.error("--plot needs matplotlib: pip install matplotlib")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    started = perf_counter()
    options = parse(argv)
    on_gpu = options.device.type == "cuda"
    full_run = on_gpu and not options.quick  # checks count only there

    def say(text: str) -> None:
        print(f"{perf_counter() - started:6.1f} s  {text}", file=sys.stderr, flush=True)

    extra = None
    if NOMINAL in options.sizes and "float32" in options.dtypes:
        say("compiling the baselines" if on_gpu else "no GPU: no baselines, and call time only")
        baselines = compile_baselines() if on_gpu else None
        extra = measure_extra(baselines, options)
    cells = []
    for dtype in options.dtypes:
        for size in options.sizes:
            cells.append(measure_cell(size, dtype, options))
            ratio = cells[-1].result.ratio("fused")
            say(f"{dtype} {size}: {cells[-1].plan.kernel}, {ratio.ratio:.3f} {ratio.verdict}")
    # Where the fused operator runs torch's own kernels, what is over the limit may be noise. A
    # second measurement, of more rounds, replaces the first whatever it says; both are kept.
    over = [cell for cell in cells if is_over_limit(cell)] if full_run else []
    for cell in sorted(over, key=lambda cell: cell.size.products):
        if perf_counter() - started < AGAIN_UNTIL_S:
            measure_again(cell, options)
            ratio = cell.result.ratio("fused")
            say(f"{cell.dtype} {cell.size} again: {ratio.ratio:.3f} {ratio.verdict}")

    found = environment(cells[0].result)
    heading = heading_of(found)
    checks = checks_of(cells, extra) if on_gpu else []
    show(heading, cells, extra, checks)
    path = options.json
    if path is None and not options.quick:
        path = result_path("all_gather_linear", found["device_name"], found["started_at"])
    if path is not None:
        data = {
            "schema": SCHEMA,
            "arguments": file_names_only(list(sys.argv[1:] if argv is None else argv)),
            "environment": found,
            "seconds": perf_counter() - started,
            "checks": [{**asdict(check), "result": check.word} for check in checks],
            "nominal": None if extra is None else _extra_dict(extra),
            "cells": [as_dict(cell) for cell in cells],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, allow_nan=False, separators=(",", ":")) + "\n")
        say(f"wrote {path}")
    if options.markdown is not None:
        options.markdown.write_text(markdown(heading, cells, extra))
        say(f"wrote {options.markdown}")
    if options.plot is not None:
        plot(options.plot, heading, cells)
        say(f"wrote {options.plot}")

    wrong = any(cell.share > 1 for cell in cells) or (extra is not None and bool(extra.wrong))
    failed = full_run and any(check.word == "FAILED" for check in checks)
    return 1 if wrong or failed else 0


def _extra_dict(extra: Extra) -> dict[str, Any]:
    return {
        "size": _letters(NOMINAL),
        "dtype": "float32",
        "kernels": extra.kernels.to_dict(),
        "against_best": None if extra.against_best is None else extra.against_best.to_dict(),
        "training": extra.training.to_dict(),
        "wrong": extra.wrong,
    }


if __name__ == "__main__":
    sys.exit(main())
