"""What gather_linear.py shows: tables, JSON and a plot."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import _gather_linear_shared
from _gather_linear_shared import Kind, digits, median
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelbench_dist.timing import BenchResult

if TYPE_CHECKING:
    from gather_linear import Result

SCHEMA = "kernelbench_dist.examples.gather_linear/1"

KINDS: dict[Kind, str] = {"warm": "device time", "call": "call time"}
COLOURS = {"faster": "green", "slower": "red", "same": "dim"}


class BadInputError(Exception):
    """What the user asked for cannot be done. The message is one line."""


# Tables


def show(result: Result, c: float) -> None:
    """One size, in full."""
    console = _console()
    R, B, H, K = result.size  # noqa: N806
    environment = result.times["forward"].environment
    plan = result.plan
    facts = {
        "problem": f"all-gather of {R} ranks + Linear, {result.dtype}",
        "shapes": f"x ({R}, {B}, {H}), weight ({K}, {R * H}), bias ({K},) -> ({B}, {K})",
        "device": f"{environment.device_name} ({result.device}), torch {environment.torch}",
        "kernel": f"{plan.kernel}: {plan.reason}",
        "tiles": "chosen by torch"
        if plan.tiles is None
        else f"{' x '.join(map(str, plan.tiles))}, inner dimension split {plan.split} ways",
    }
    for name, fact in facts.items():
        console.print(Text.assemble((f"{name:<9}", "bold"), fact))

    table = _table("Largest error against float64, in proportion to its bound")
    for header in ("", "reference", "bound", "/ bound", "fused", "bound", "/ bound"):
        table.add_column(header, justify="right" if header else "left", no_wrap=True)
    for name, ways in result.errors.items():
        cells: list[str | Text] = [name]
        for error in ways.values():
            cells += [f"{error.error:.2e}", f"{error.bound:.2e}", f"{error.share:.3f}"]
        if ways["fused"].share > 1 or math.isnan(ways["fused"].share):
            cells.append(Text("exceeds the bound", "bold red"))
        table.add_row(*cells)
    console.print(table)

    table = _table("Time of one call: the median, and the ratio with its 99 % interval")
    for header in ("", "reference", "fused", "fused / reference", "interval", "verdict"):
        table.add_column(header, justify="right" if header else "left", no_wrap=True)
    for name, timed, kind in _timings(result):
        ratio = timed.ratio("fused", kind)
        table.add_row(
            f"{name}, {KINDS[kind]}",
            time_text(median(timed, "reference", kind)),
            time_text(median(timed, "fused", kind)),
            f"{ratio.ratio:.3f}",
            f"{ratio.low:.3f} .. {ratio.high:.3f}",
            Text(ratio.verdict, COLOURS[ratio.verdict]),
        )
    for name, counts in result.kernels.items():
        kernels = ["not measured" if n is None else f"{n:g}" for n in counts.values()]
        table.add_row(f"{name}, device kernels", *kernels)
    console.print(table)
    _print_notes(console, [result], c)


def show_sweep(results: Sequence[Result], c: float) -> None:
    """Several sizes, one a line."""
    console = _console()
    environment = results[0].times["forward"].environment
    console.print(
        f"All-gather + Linear, {results[0].dtype}, {environment.device_name} ({results[0].device}),"
        f" torch {environment.torch}"
    )
    for kind, title in KINDS.items():
        if results[0].times["forward"].empty.timing(kind) is None:
            continue
        table = _table(f"{title[0].upper()}{title[1:]} and the largest error of the fused operator")
        table.add_column("R x B x H x K", no_wrap=True)
        table.add_column("kernel")
        for header in (
            "error / bound",
            "reference",
            "fused",
            "fused / reference",
            "",
            "with backward",
            "",
        ):
            table.add_column(header, justify="right" if header else "left")
        for result in results:
            share = max(ways["fused"].share for ways in result.errors.values())
            forward = result.times["forward"]
            cells: list[str | Text] = [
                str(result.size),
                result.plan.kernel,
                Text(f"{share:.3f}", "" if share <= 1 else "bold red"),
                time_text(median(forward, "reference", kind)),
                time_text(median(forward, "fused", kind)),
            ]
            for timed in result.times.values():
                ratio = timed.ratio("fused", kind)
                cells += [f"{ratio.ratio:.3f}", Text(ratio.verdict, COLOURS[ratio.verdict])]
            table.add_row(*cells)
        console.print(table)
    _print_notes(console, results, c)


def _print_notes(console: Console, results: Sequence[Result], c: float) -> None:
    notes = [f"bound: {c:g} * eps({results[0].dtype}) * (the same sum over absolute values)"]
    if not results[0].device.startswith("cuda"):
        notes.append("call time: wall clock. Device time and kernels are measured on a GPU")
    else:
        notes.append("device time: kernels alone, warm L2. Call time: wall clock with the launches")
    for result in results:
        for name, timed in result.times.items():
            if timed.reason is not None:
                notes.append(f"{result.size}, {name}: by {timed.method}, since {timed.reason}")
    for note in notes:
        console.print(Text(f"* {note}", "dim"))


def _console() -> Console:
    # A pipe has no width; 120 columns hold the tables.
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )


def _timings(result: Result) -> Iterator[tuple[str, BenchResult, Kind]]:
    for name, timed in result.times.items():
        for kind in KINDS:
            if timed.empty.timing(kind) is not None:
                yield name, timed, kind


def time_text(us: float) -> str:
    """Three significant digits or more, and the unit.

    >>> time_text(1.4712), time_text(38.04), time_text(21778.0)
    ('1.47 us', '38.0 us', '21.8 ms')
    """
    for unit, scale in (("us", 1.0), ("ms", 1e3), ("s", 1e6)):
        if us < 1000 * scale or unit == "s":
            break
    return f"{digits(us / scale)} {unit}"


# Files


def check_writable(path: Path) -> None:
    """Find out before the work is done. A file that exists is left as it is."""
    existed = path.exists()
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise BadInputError(f"cannot write {path}: {error.strerror or error}") from None
    if not existed:
        path.unlink()


def write_json(path: Path, results: Sequence[Result], c: float, seed: int) -> None:
    """Everything, unrounded. A number that is not finite becomes null."""
    data = {
        "schema": SCHEMA,
        "seed": seed,
        "bound_factor": c,
        "results": [
            {
                "size": result.size._asdict(),
                "dtype": result.dtype,
                "device": result.device,
                "plan": asdict(result.plan),
                "errors": {
                    name: {way: _finite(error._asdict()) for way, error in ways.items()}
                    for name, ways in result.errors.items()
                },
                "within_bound": result.is_right,
                "times": {name: timed.to_dict() for name, timed in result.times.items()},
                "kernels": result.kernels,
            }
            for result in results
        ],
    }
    path.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n")
    print(f"wrote {path}")


def _finite(numbers: dict[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def check_plot(path: Path) -> None:
    """Raise BadInputError where matplotlib is missing or does not write such a file."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise BadInputError(
            "--plot needs matplotlib: pip install matplotlib, or kernelbench-dist[plot]"
        ) from None
    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in known:
        raise BadInputError(
            f"{path}: no such kind of picture; matplotlib writes {', '.join(sorted(known))}"
        )


def draw(path: Path, results: Sequence[Result]) -> None:
    """Forward time of both ways, and the ratio with its interval, over the number of products."""
    forward = [result.times["forward"] for result in results]
    kind: Kind = "warm" if forward[0].empty.warm is not None else "call"
    environment = forward[0].environment
    heading = (
        f"all-gather + Linear, {results[0].dtype}, {environment.device_name},"
        f" torch {environment.torch}"
    )
    lines = list(zip((result.size for result in results), forward, strict=True))
    title = f"{KINDS[kind]} of forward"
    _gather_linear_shared.draw(path, heading, title, kind, {results[0].dtype: lines})
    print(f"wrote {path}")
