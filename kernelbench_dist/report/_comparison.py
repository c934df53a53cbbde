"""A comparison as text: the ranking, and why what was not timed was not."""

from __future__ import annotations

from collections.abc import Iterator

from kernelbench_dist.harness._compare_submissions import ComparisonResult
from kernelbench_dist.report._figures import KINDS, figure, one_line, sizes
from kernelbench_dist.report._layout import paragraph, table
from kernelbench_dist.timing import Ratio


def compared(result: ComparisonResult) -> Iterator[str]:
    """Times and ratios, the fastest first; then those that failed."""
    timing = result.timing
    if timing is None:
        yield from paragraph("time", "not measured")
    else:
        whose = f" of {result.timing_of}" if result.timing_of else ""
        yield from paragraph(
            "time",
            f"{KINDS[timing.kind]}{whose}, at sizes {sizes(result.timing_sizes)}, "
            f"{timing.rounds} rounds in turns, on {timing.environment.device_name}; waited for the "
            f"device: {figure(result.waited_seconds, 's')}",
        )
        yield from table(_COLUMNS, list(_rows(result)))
    for entrant in result.entrants:
        if not entrant.passed:
            said = f"{one_line(entrant.name, 120)}: {entrant.verdict}: {one_line(entrant.reason)}"
            yield from paragraph("failed", said)


_COLUMNS = ("submission", "us a call", "of the reference's", "it is", "of the fastest's", "it is")


def _rows(result: ComparisonResult) -> Iterator[list[str]]:
    timing = result.timing
    assert timing is not None
    first = next(iter(result.ranking), None)
    for name in [*result.ranking, timing.baseline]:
        timed = timing[name].timing(timing.kind)
        assert timed is not None
        to_reference = None if name == timing.baseline else result.ratio(name, timing.baseline)
        to_first = None if first is None or name == first else result.ratio(name, first)
        yield [
            one_line(name, 60),
            figure(timed.median_us),
            *_said(to_reference),
            *_said(to_first, "" if name == first else "not measured"),
        ]


def _said(ratio: Ratio | None, instead: str = "") -> tuple[str, str]:
    if ratio is None:
        return instead, ""
    return f"{ratio.ratio:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]", ratio.verdict
