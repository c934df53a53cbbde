"""Figures and names as people read them. This is the only place where a figure is rounded."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from kernelbench_dist.timing._result import Kind

NOT_MEASURED = "not measured"
KINDS: dict[Kind, str] = {
    "warm": "device time, warm L2",
    "cold": "device time, cold L2",
    "call": "call time",
}
"""of times, by the names that people read"""

# What could move the cursor, colour a line or hide text; a submission chooses parts of what is
# printed here.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def figure(value: float | None, unit: str = "") -> str:
    """Three significant digits, without an exponent from 0.001 to a million.

    >>> figure(1787.6, "us"), figure(2.245e-07), figure(7.0, "s"), figure(None)
    ('1790 us', '2.25e-07', '7.00 s', 'not measured')
    """
    if value is None:
        return NOT_MEASURED
    digits = f"{value:.2e}"
    if value == 0 or not math.isfinite(value):
        digits = f"{value:g}"
    elif 1e-3 <= abs(value) < 999_500:
        exponent = int(digits.partition("e")[2])
        digits = f"{float(digits):.{max(0, 2 - exponent)}f}"
    return f"{digits} {unit}".rstrip()


def value_of(value: float | int | str | None) -> str:
    """An element of a tensor: nine significant digits tell any two float32 apart.

    >>> value_of(-0.18793210288259093), value_of("nan")
    ('-0.187932103', 'nan')
    """
    if value is None:
        return NOT_MEASURED
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def number(value: float | int | str | None) -> float | None:
    """A field that may hold "inf" or "nan" as text, since JSON has neither."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:  # a complex number
            return None
    return value


def amount(nbytes: int | None) -> str:
    """
    >>> amount(512), amount(1 << 20), amount(None)
    ('512 bytes', '1.00 MiB', 'not measured')
    """
    if nbytes is None:
        return NOT_MEASURED
    if nbytes < 1024:
        return f"{nbytes} bytes"
    power = min((nbytes.bit_length() - 1) // 10, 4)
    return figure(nbytes / 1024**power, ("KiB", "MiB", "GiB", "TiB")[power - 1])


def decimal(value: float | None, unit: str) -> str:
    """
    >>> decimal(4.8e12, "B/s"), decimal(688_128, "FLOP"), decimal(0.0, "FLOP")
    ('4.80 TB/s', '688 kFLOP', '0 FLOP')
    """
    if value is None:
        return NOT_MEASURED
    power = max(0, min(5, math.floor(math.log10(abs(value)) / 3))) if value else 0
    return figure(value / 1000**power, ("", "k", "M", "G", "T", "P")[power] + unit)


def sizes(values: Mapping[str, int] | None) -> str:
    """
    >>> sizes({"B": 25, "K": 3}), sizes({})
    ('B=25,K=3', "the problem's own")
    """
    if not values:
        return "the problem's own"
    return ",".join(f"{name}={value}" for name, value in values.items())


def shape(dims: Sequence[int]) -> str:
    """
    >>> shape((4, 12, 32)), shape(())
    ('(4, 12, 32)', '()')
    """
    return f"({', '.join(map(str, dims))})"


def one_line(text: str, most: int = 400) -> str:
    """Text on one line, without control characters, and cut where it is longer than `most`.

    >>> one_line("a\\n  b\\x1b[31m")
    'a b\\\\x1b[31m'
    """
    # Cut first: what a submission raises may be very long.
    flat = printable(" ".join(text[: 4 * most].split()))
    return flat if len(flat) <= most else flat[: most - 4] + " ..."


def printable(text: str) -> str:
    """Text with its control characters written out."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def printable_lines(text: str) -> str:
    """The same with its line ends kept."""
    return "\n".join(printable(line.expandtabs(4)) for line in text.split("\n"))


def counted(n: int, one: str, many: str | None = None) -> str:
    """
    >>> counted(1, "kernel"), counted(3, "kernel"), counted(2, "copy", "copies")
    ('1 kernel', '3 kernels', '2 copies')
    """
    return f"{n} {one if n == 1 else many or one + 's'}"
