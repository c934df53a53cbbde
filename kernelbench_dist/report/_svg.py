"""Drawings as SVG elements: what is written into them is escaped, and colours come from the page.

A mark names a class, for which the page's style sheet has a colour in light and in dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from markupsafe import Markup

from kernelbench_dist.report._figures import printable


class Svg:
    """A drawing of so many units, which the page scales to the width that it has.

    >>> print(Svg(10, 5, "a < b").markup())
    <svg viewBox="0 0 10 5" role="img" aria-label="a &lt; b" class="plot" />
    """

    def __init__(self, width: float, height: float, label: str, kind: str = "plot") -> None:
        self.width, self.height = width, height
        self._root = ElementTree.Element(
            "svg",
            {
                "viewBox": f"0 0 {width:g} {height:g}",
                "role": "img",
                "aria-label": printable(label),
                "class": kind,
            },
        )

    def add(self, tag: str, kind: str, hover: str = "", **attributes: float | str) -> None:
        """An element of a class; hover: the text that a pointer on it shows."""
        plain = {k: v if isinstance(v, str) else f"{v:.2f}" for k, v in attributes.items()}
        element = ElementTree.SubElement(self._root, tag, {"class": kind, **plain})
        if hover:
            ElementTree.SubElement(element, "title").text = printable(hover)

    def line(self, kind: str, x1: float, y1: float, x2: float, y2: float, hover: str = "") -> None:
        self.add("line", kind, hover, x1=x1, y1=y1, x2=x2, y2=y2)

    def path(self, kind: str, points: Sequence[tuple[float, float]], hover: str = "") -> None:
        self.add("path", kind, hover, d="M" + " L".join(f"{x:.2f},{y:.2f}" for x, y in points))

    def text(self, x: float, y: float, text: str, kind: str = "label", at: str = "start") -> None:
        """at: "start", "middle" or "end", where x is on the text."""
        names = {"class": kind, "x": f"{x:.2f}", "y": f"{y:.2f}", "text-anchor": at}
        ElementTree.SubElement(self._root, "text", names).text = printable(text)

    def markup(self) -> Markup:
        return Markup(ElementTree.tostring(self._root, encoding="unicode"))


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` along `start` to `end` of a drawing.

    >>> Axis(0.0, 10.0, 100.0, 200.0)(5.0), Axis(1.0, 100.0, 0.0, 200.0, log=True)(10.0)
    (150.0, 100.0)
    >>> Axis(0.0, 10.0, 0, 1).ticks(), Axis(0.5, 200.0, 0, 1, log=True).ticks()
    ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 10.0, 100.0])
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values within the axis, `most` at most but for a logarithmic one."""
        if not self.log:
            step = 10.0 ** math.floor(math.log10((self.high - self.low) / most))
            while (self.high - self.low) / step > most:
                step *= 2.5 if f"{step:e}".startswith("2.0") else 2.0
            first = math.ceil(self.low / step - 1e-9)
            count = math.floor(self.high / step + 1e-9) - first
            return [(first + i) * step for i in range(count + 1)]
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        within = [10.0**p for p in range(first, last + 1) if self.low <= 10.0**p <= self.high]
        if len(within) < 3:
            several = [m * 10.0**p for p in range(first, last + 1) for m in (1, 2, 5)]
            return [v for v in several if self.low <= v <= self.high]
        return within[:: math.ceil(len(within) / most)]


def cut(text: str, most: int) -> str:
    """A name that fits a drawing."""
    flat = printable(" ".join(text.split()))
    return flat if len(flat) <= most else "…" + flat[-(most - 1) :]
