"""What gather_linear.py and ../benchmarks share: sizes, numbers as text, and a plot."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from kernelbench_dist.timing import BenchResult

Kind = Literal["warm", "cold", "call"]


class Size(NamedTuple):
    ranks: int
    rows: int
    features: int  # on one rank
    outputs: int

    def __str__(self) -> str:
        return "x".join(map(str, self))

    @property
    def products(self) -> int:
        return math.prod(self)


NOMINAL = Size(4, 12, 32, 56)  # of problems/level2/47
SIZES = (
    NOMINAL,
    Size(4, 64, 64, 256),
    Size(4, 256, 128, 512),
    Size(8, 512, 128, 1024),
    Size(8, 1024, 256, 2048),
    Size(8, 4096, 512, 512),
    Size(8, 4096, 512, 4096),
    Size(4, 8192, 1024, 4096),
    Size(8, 8192, 1024, 8192),
    Size(8, 16384, 512, 1024),
    Size(64, 2048, 64, 1024),
)


def positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def parse_sizes(text: str) -> list[Size]:
    """Of text such as "4x12x32x56,8x512x128x1024", each once."""
    found = []
    for item in text.split(","):
        parts = item.strip().split("x")
        if len(parts) != 4:
            raise argparse.ArgumentTypeError(
                f"{item!r} is not a size: ranks x rows x features x outputs, such as {NOMINAL}"
            )
        found.append(Size(*map(positive, parts)))
    return list(dict.fromkeys(found))


def digits(value: float) -> str:
    """Three significant digits or more, at most two decimals, and no exponent.

    >>> digits(0.7), digits(1.4712), digits(38.04), digits(21778.3)
    ('0.70', '1.47', '38.0', '21778')
    """
    return f"{value:.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"


def median(result: BenchResult, name: str, kind: Kind) -> float:
    """In microseconds; nan where it was not measured."""
    timing = result[name].timing(kind)
    return math.nan if timing is None else timing.median_us


def draw(
    path: Path,
    heading: str,
    title: str,
    kind: Kind,
    lines: Mapping[str, Sequence[tuple[Size, BenchResult]]],
) -> None:
    """Both times, and their ratio with its interval, over the number of products: a colour a line.

    `title` is that of `kind`, which must have been measured.
    """
    from matplotlib.figure import Figure  # not pyplot: no window, no global state

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    times, ratios = figure.subplots(1, 2)
    for i, (label, cells) in enumerate(lines.items()):
        cells = sorted(cells, key=lambda cell: cell[0].products)
        products = [size.products for size, _ in cells]
        for name, style in (("reference", "o--"), ("fused", "o-")):
            us = [median(result, name, kind) for _, result in cells]
            times.plot(products, us, style, color=f"C{i}", label=f"{label}, {name}", markersize=3)
        found = [result.ratio("fused", kind) for _, result in cells]
        # A ratio of medians may lie just outside of its bootstrap interval.
        below = [max(0.0, r.ratio - r.low) for r in found]
        above = [max(0.0, r.high - r.ratio) for r in found]
        ratio = [r.ratio for r in found]
        ratios.errorbar(
            products, ratio, yerr=[below, above], fmt="o-", color=f"C{i}", label=label, capsize=3
        )
    times.set(xscale="log", yscale="log", ylabel=f"{title}, us")
    ratios.set(xscale="log", ylabel="fused / reference, 99 % interval")
    ratios.set_ylim(bottom=0)
    ratios.axhline(1, color="grey", linewidth=1)
    for axes in (times, ratios):
        axes.set_xlabel("multiplications, R * B * H * K")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.suptitle(heading, fontsize=8)
    figure.savefig(path, dpi=150)
