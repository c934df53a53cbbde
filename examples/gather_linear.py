"""All-gather + Linear over R ranks on one device: torch's own operations beside the fused operator.

Rank r holds x[r], some features of every row. The next layer needs all of them:

    y = concat(x[0], ..., x[R-1], on the last dim) @ weight.T + bias

The problem suite's reference gathers with torch.cat and then multiplies. `nn.AllGatherLinear` reads
the ranks where they are. This script runs both, forward and backward, compares each with float64,
times them side by side and prints what it found. Try:

    python examples/gather_linear.py
    python examples/gather_linear.py --dtype bfloat16 --rows 256
    python examples/gather_linear.py --sweep --plot sweep.png --json sweep.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

import _report
import torch
from _gather_linear_shared import SIZES, Size, parse_sizes, positive
from _report import BadInputError
from rich.console import Console
from rich.progress import Progress

from kernelbench_dist import nn, ops
from kernelbench_dist.distributed_collectives import default_device
from kernelbench_dist.problems import load
from kernelbench_dist.timing import BenchResult, bench

PROBLEM = "level2/47"
C = 4.0  # the bound on an error is C * eps * (the same sum over absolute values)
DTYPES = ("float32", "float64", "float16", "bfloat16")


class Error(NamedTuple):
    """The element whose error is largest in proportion to its bound."""

    error: float
    bound: float
    share: float  # error / bound: more than 1 is wrong


@dataclass
class Result:
    """What is known of one size, for both ways: "reference" and "fused"."""

    size: Size
    dtype: str
    device: str
    plan: ops.Plan
    errors: dict[str, dict[str, Error]]  # "output", "grad x" ... -> "reference", "fused"
    times: dict[str, BenchResult]  # "forward", "forward + backward"
    kernels: dict[str, dict[str, float | None]] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        return all(ways["fused"].share <= 1 for ways in self.errors.values())


class Case:
    """The problem at one size: its inputs, and the two modules with the same parameters."""

    def __init__(self, size: Size, dtype: str, device: torch.device, seed: int) -> None:
        self.size, self.dtype, self.device = size, getattr(torch, dtype), device
        torch.manual_seed(seed)  # draws the parameters; the inputs have a generator of their own
        generator = torch.Generator().manual_seed(seed)

        problem = load(PROBLEM)
        for name, value in zip("RBHK", size, strict=True):
            setattr(problem.module, name, value)  # the sizes are globals of the problem's file
        [x] = problem.get_inputs(generator, jitter=False)
        dy = torch.randn(size.rows, size.outputs, generator=generator)
        self.x = x.to(device, self.dtype).requires_grad_()
        self.dy = dy.to(device, self.dtype)  # the gradient that comes from above

        model = problem.Model(*problem.get_init_inputs()).to(device, self.dtype)
        layer = nn.AllGatherLinear(
            size.ranks, size.features, size.outputs, device=device, dtype=self.dtype
        )
        layer.load_state_dict(model.get_submodule("proj").state_dict())
        self.weight, self.bias = layer.weight, layer.bias
        self.ways: dict[str, torch.nn.Module] = {"reference": model, "fused": layer}

    def forward_and_backward(self, way: str) -> tuple[torch.Tensor, ...]:
        """The output, and the gradients of x, weight and bias."""
        module = self.ways[way]
        y = module(self.x)
        return y, *torch.autograd.grad(y, (self.x, *module.parameters()), self.dy)


def errors_of(case: Case) -> dict[str, dict[str, Error]]:
    """Output and gradients of both ways against formulas in float64, rank by rank."""

    def exact(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, dy: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        weights = weight.chunk(case.size.ranks, dim=1)  # weights[r] meets x[r]
        y = bias.expand_as(dy).clone()
        for x_r, weight_r in zip(x, weights, strict=True):
            y += x_r @ weight_r.T
        return {
            "output": y,
            "grad x": torch.stack([dy @ weight_r for weight_r in weights]),
            "grad weight": torch.cat([dy.T @ x_r for x_r in x], dim=1),
            "grad bias": dy.sum(0),
        }

    inputs = [t.detach().double() for t in (case.x, case.weight, case.bias, case.dy)]
    expected = exact(*inputs)
    scales = exact(*[t.abs() for t in inputs])
    found = {way: case.forward_and_backward(way) for way in case.ways}
    return {
        name: {
            way: _worst(found[way][i], expected[name], C * _eps(case) * scales[name])
            for way in case.ways
        }
        for i, name in enumerate(expected)
    }


def _eps(case: Case) -> float:
    tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32" and case.device.type == "cuda"
    return 2.0**-10 if tf32 and case.dtype == torch.float32 else torch.finfo(case.dtype).eps


def _worst(got: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor) -> Error:
    error = (
        (got.detach().double() - expected).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
    )
    info = torch.finfo(got.dtype)
    bound = bound.clamp(min=info.smallest_normal * info.eps)  # no error is smaller than that
    share = error / bound
    at = share.argmax()  # an index into the flattened tensors
    return Error(*(t.flatten()[at].item() for t in (error, bound, share)))


def times_of(case: Case, *, quick: bool, progress: bool | None) -> dict[str, BenchResult]:
    """Both ways timed in turns, without gradients and with them. The baseline is the reference."""
    timed = partial(
        bench,
        rounds=10 if quick else 30,
        min_time_ms=0.2 if quick else 1.0,
        cold=False,
        progress=progress,
    )
    with torch.no_grad():
        forward = timed(case.ways, case.x)
    both = {way: partial(case.forward_and_backward, way) for way in case.ways}
    return {"forward": forward, "forward + backward": timed(both, device=case.device)}


def kernels_of(case: Case) -> dict[str, dict[str, float | None]]:
    """Device kernels a call, by torch's profiler; None where it sees none, as on a CPU.

    For after all timing: a profiler that has run may slow down the launches that follow.
    """

    def forward(way: str) -> torch.Tensor:
        with torch.no_grad():
            y: torch.Tensor = case.ways[way](case.x)
            return y

    runs = {"forward": forward, "forward + backward": case.forward_and_backward}
    return {
        name: {way: _count(partial(run, way), case.device) for way in case.ways}
        for name, run in runs.items()
    }


def _count(run: Callable[[], object], device: torch.device, calls: int = 4) -> float | None:
    if device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    kernels = 0
    for _ in range(2):  # kernels may be missed while the profiler starts: the second time counts
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
            for _ in range(calls):
                run()
            torch.cuda.synchronize(device)
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder, "trace.json")
            profiler.export_chrome_trace(str(trace))
            events = json.loads(trace.read_text())["traceEvents"]
        kernels = sum(event.get("cat") == "kernel" for event in events)
    return kernels / calls if kernels else None


def measure(case: Case, options: argparse.Namespace, *, progress: bool | None) -> Result:
    """All but the number of kernels."""
    return Result(
        size=case.size,
        dtype=options.dtype,
        device=str(options.device),
        plan=ops.plan("all_gather_linear", case.x, case.weight, case.bias),
        errors=errors_of(case),
        times=times_of(case, quick=options.quick, progress=progress),
    )


def measure_all(sizes: Sequence[Size], options: argparse.Namespace) -> list[Result]:
    """A Result for each size. Several have a progress bar at a terminal, else a line each."""

    def case_of(size: Size) -> Case:
        return Case(size, options.dtype, options.device, options.seed)

    if len(sizes) == 1:
        results = [measure(case_of(sizes[0]), options, progress=None)]
    else:
        results = []
        console = Console(stderr=True)
        # auto_refresh would draw from a thread of its own while something is timed.
        with Progress(
            console=console, auto_refresh=False, transient=True, disable=not console.is_terminal
        ) as bar:
            task = bar.add_task("", total=len(sizes))
            for size in sizes:
                bar.update(task, description=str(size), refresh=True)
                results.append(measure(case_of(size), options, progress=False))
                bar.update(task, advance=1, refresh=True)
                if not console.is_terminal:
                    ratio = results[-1].times["forward"].ratio("fused")
                    done = f"[{len(results)}/{len(sizes)}] {size}"
                    line = f"{done}  fused / reference {ratio.ratio:.3f} {ratio.verdict}"
                    print(line, file=sys.stderr, flush=True)
    for result in results:
        result.kernels = kernels_of(case_of(result.size))
    return results


# The command line


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInputError(message)


def _device(text: str) -> torch.device:
    try:
        device = torch.device(text)
    except RuntimeError:  # torch's way of saying that it knows no such device
        device = torch.device("meta")
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise argparse.ArgumentTypeError(f"{text!r} is not cpu, cuda, or cuda with a number")
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise argparse.ArgumentTypeError(f"{text!r}: torch sees {count} CUDA devices here")
    return torch.device(
        "cuda", torch.cuda.current_device() if device.index is None else device.index
    )


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    default = load(PROBLEM).module  # R, B, H, K are globals of the problem's file
    parser = _Parser(prog="gather_linear.py", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("-R", "--ranks", type=positive, metavar="R", help=f"default {default.R}")
    add("-B", "--rows", type=positive, metavar="B", help=f"default {default.B}")
    add("-H", "--features", type=positive, metavar="H", help=f"of one rank; default {default.H}")
    add("-K", "--outputs", type=positive, metavar="K", help=f"default {default.K}")
    add("--dtype", choices=DTYPES, default="float32")
    add("--device", type=_device, default=str(default_device()), help="default %(default)s")
    add(
        "--sweep",
        nargs="?",
        const="default",
        metavar="SIZES",
        help="several sizes, such as 4x12x32x56,8x512x128x1024 (ranks x rows x features x outputs);"
        " without a list: sizes that suit the device",
    )
    add("--plot", type=Path, metavar="FILE", help="draw time and ratio over size")
    add("--json", type=Path, metavar="FILE", help="write everything, unrounded")
    add("--seed", type=int, default=9, help="of inputs and parameters; default %(default)s")
    add("--quick", action="store_true", help="fewer and shorter samples")
    options = parser.parse_args(argv)

    names = ("ranks", "rows", "features", "outputs")
    given = [name for name in names if getattr(options, name) is not None]
    if options.sweep is None:
        for name, letter in zip(names, "RBHK", strict=True):
            if name not in given:
                setattr(options, name, getattr(default, letter))
        options.sizes = [Size(*(getattr(options, name) for name in names))]
    elif given:
        parser.error(f"--{given[0]} and --sweep both give sizes: use one of them")
    elif options.sweep == "default":
        options.sizes = [size for size in SIZES if _suits(size, options)]
    else:
        try:
            options.sizes = parse_sizes(options.sweep)
        except argparse.ArgumentTypeError as error:
            parser.error(f"argument --sweep: {error}")
    for size in options.sizes:
        needed, there = _memory(size, options)
        if needed > there:
            parser.error(
                f"size {size} takes about {needed / 2**30:.3g} GiB, and {options.device} has"
                f" {there / 2**30:.3g}"
            )
    return options


def _suits(size: Size, options: argparse.Namespace) -> bool:
    needed, there = _memory(size, options)
    limit = 1e12
    if options.device.type == "cpu":
        limit = 1e9 if options.dtype in ("float32", "float64") else 1e8
    return needed <= there and size.products <= (limit / 20 if options.quick else limit)


def _memory(size: Size, options: argparse.Namespace) -> tuple[int, int]:
    """Bytes that a size takes, roughly, and bytes that there are."""
    R, B, H, K = size  # noqa: N806
    elements = R * B * H + K * R * H + B * K
    # Inputs, results and their magnitudes in float64; inputs, gathered copy and results in dtype.
    needed = elements * (6 * 8 + 4 * getattr(torch, options.dtype).itemsize)
    if options.device.type == "cuda":
        return needed, torch.cuda.mem_get_info(options.device)[0]
    return needed, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def main(argv: Sequence[str] | None = None) -> int:
    """0: all is right. 1: an error exceeds its bound. 2: bad input, or an unwritable file."""
    try:
        options = _parse(argv)
        for path in (options.json, options.plot):
            if path is not None:
                _report.check_writable(path)
        if options.plot is not None:
            _report.check_plot(options.plot)
        if options.plot is not None and options.plot == options.json:
            raise BadInputError(f"{options.plot} cannot be both --json and --plot")
        if not 0 <= options.seed < 2**63:
            raise BadInputError(f"--seed {options.seed}: 0 to 2^63 - 1 is accepted")
    except BadInputError as error:
        print(f"gather_linear.py: error: {error}", file=sys.stderr)
        return 2

    results = measure_all(options.sizes, options)
    if options.sweep is None:
        _report.show(results[0], C)
    else:
        _report.show_sweep(results, C)
    try:
        if options.json is not None:
            _report.write_json(options.json, results, C, options.seed)
        if options.plot is not None:
            _report.draw(options.plot, results)
    except OSError as error:
        print(f"gather_linear.py: error: {error}", file=sys.stderr)
        return 2
    return 0 if all(result.is_right for result in results) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)  # as a shell reports it
