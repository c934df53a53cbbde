"""Profiles: where the time goes, with bars; and what the other tools of profiling found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kernelbench_dist.harness._submit import function_name
from kernelbench_dist.harness.profile._counters import Access, KernelCounters
from kernelbench_dist.harness.profile._results import (
    Activity,
    Hint,
    KernelProfile,
    ProfileResult,
)
from kernelbench_dist.report._figures import (
    NOT_MEASURED,
    amount,
    counted,
    decimal,
    figure,
    one_line,
    sizes,
)
from kernelbench_dist.report._layout import WIDTH, rendered

_BAR = 20
_MOST_ROWS = 12
_MOST_KERNELS = 4


def profiled(result: ProfileResult) -> Iterator[str]:
    """The figures as plain lines."""
    yield from rendered(renderables(result), WIDTH)


def renderables(result: ProfileResult) -> Iterator[RenderableType]:
    """Class first, then times, kernels, counters of each, and hints."""
    if result.time_class is not None:
        c = result.time_class
        yield _line("class", c.name)
        yield _line("", f"{c.because} (by {c.source})")
    yield from _answers(result)
    yield from _times(result)
    yield from _light(result)
    yield from _activity(result)
    if not result.activity and result.operators:
        yield _operators(result)
    yield from _counters(result)
    for hint in result.hints:
        yield from _hint(hint)


def _line(label: str, text: str | Text) -> RenderableType:
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_column(width=9, no_wrap=True)
    row.add_column(overflow="fold")
    row.add_row(Text(label), text if isinstance(text, Text) else Text(text))
    return row


def bar(percent: float, width: int = _BAR) -> str:
    """
    >>> bar(50, 4), bar(0, 4), bar(130, 4)
    ('██··', '····', '████')
    """
    full = round(min(max(percent, 0.0), 100.0) / 100 * width)
    return "█" * full + "·" * (width - full)


def _answers(result: ProfileResult) -> Iterator[RenderableType]:
    if result.trial is None:
        yield _line("answers", "not known to be right: none were compared")
    elif result.trial.passed:
        yield _line("answers", f"right, on a draw with seed {result.trial.seed}")
    else:
        yield _line("answers", f"WRONG ({result.trial.verdict}): {one_line(result.trial.reason)}")


def _times(result: ProfileResult) -> Iterator[RenderableType]:
    t = result.times
    if t is None:
        yield _line("time", NOT_MEASURED)
        return
    table = _table("", "us a call", "empty", "above it")
    for name, us, empty in (
        ("device time, warm L2", t.warm_us, t.empty_warm_us),
        ("device time, cold L2", t.cold_us, t.empty_cold_us),
        ("call time", t.call_us, t.empty_call_us),
    ):
        if us is not None:
            above = None if empty is None else us - empty
            table.add_row(name, figure(us), figure(empty), figure(above))
    waited = figure(result.waited_seconds, "s")
    how = {"graph": "a graph's replay", "events": "events", "wall": "the clock"}[t.method]
    yield _line(
        "time", f"by {how}, at sizes {sizes(result.sizes)}; waited for the device: {waited}"
    )
    yield Padding(table, (0, 0, 0, 2))


def _light(result: ProfileResult) -> Iterator[RenderableType]:
    light, counters = result.roofline_light, result.counter_light
    if light is not None:
        floor = {"memory": "its bytes", "compute": "its FLOPs", "launch": "an empty kernel"}
        yield _line(
            "roofline",
            f"fraction {figure(light.fraction)}: at least {figure(light.least_us, 'us')}, for "
            f"{floor[light.limit]}, over {figure(light.time_us, 'us')} ({light.time_kind} L2)",
        )
    if counters is not None:
        yield _line(
            "counters",
            f"speed of light {figure(counters.percent, '%')} of peak: multiprocessors "
            f"{figure(counters.sm_percent, '%')}, memory {figure(counters.memory_percent, '%')}",
        )
    cost = result.analysis
    if cost is not None:
        peaks = ""
        if cost.peak_bytes_per_s is not None:
            peaks = (
                f"; peaks {decimal(cost.peak_bytes_per_s, 'B/s')} and "
                f"{decimal(cost.peak_flops_per_s, 'FLOP/s')} ({cost.peak_source}), ridge point "
                f"{figure(cost.ridge_point)}"
            )
        yield _line(
            "cost",
            f"{decimal(cost.bytes_moved, 'B')} and {decimal(cost.flops, 'FLOP')} at least (by "
            f"{cost.cost_source}), {figure(cost.intensity)} FLOP a byte{peaks}",
        )


def _activity(result: ProfileResult) -> Iterator[RenderableType]:
    if not result.activity:
        if result.activity_absent:
            yield _line("kernels", result.activity_absent)
        return
    total = sum(a.us_per_call for a in result.activity)
    launches = result.launches_per_call or 0.0
    yield _line(
        "kernels",
        f"{launches:g} a call, {figure(total, 'us')} with copies and fills (by torch.profiler)",
    )
    table = _table("", "launches", "us", "%", "grid", "block", "regs", "shared", names=True)
    for a in result.activity[:_MOST_ROWS]:
        table.add_row(
            _name(a),
            f"{a.launches_per_call:g}",
            figure(a.us_per_call),
            f"{bar(100 * a.us_per_call / total, 8)} {100 * a.us_per_call / total:.0f}"
            if total
            else "",
            _dims(a.grid),
            _dims(a.block),
            "" if a.registers_per_thread is None else str(a.registers_per_thread),
            amount(a.shared_bytes if a.kind == "kernel" else a.bytes)
            if (a.shared_bytes if a.kind == "kernel" else a.bytes) is not None
            else "",
        )
    yield Padding(table, (0, 0, 0, 2))
    if len(result.activity) > _MOST_ROWS:
        yield Text(f"  ... and {len(result.activity) - _MOST_ROWS} more")


def _name(a: Activity) -> str:
    if a.kind != "kernel":
        return one_line(a.name, 60)
    return _short(a.name) + ("" if a.is_own else " (not its own)")


def _short(kernel: str) -> str:
    return one_line(function_name(kernel), 60)


def _dims(dims: Sequence[int] | None) -> str:
    if dims is None:
        return ""
    kept = list(dims)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return "x".join(map(str, kept))


def _operators(result: ProfileResult) -> RenderableType:
    table = _table("operator", "calls", "self us", "total us", names=True)
    for o in result.operators[:_MOST_ROWS]:
        table.add_row(
            one_line(o.name, 60),
            f"{o.calls_per_call:g}",
            figure(o.self_us_per_call),
            figure(o.total_us_per_call),
        )
    return Group(
        _line("torch", "operators on the CPU, by call (by torch.profiler)"),
        Padding(table, (0, 0, 0, 2)),
    )


def _counters(result: ProfileResult) -> Iterator[RenderableType]:
    if not result.kernels:
        yield _line("counters", f"none: {result.counters_absent or NOT_MEASURED}")
        return
    yield _line("counters", f"by {result.counters_source}")
    by_time = sorted(result.kernels, key=lambda k: -(k.counters.time_us or 0.0))
    for kernel in by_time[:_MOST_KERNELS]:
        yield from _kernel(kernel, result)
    if len(by_time) > _MOST_KERNELS:
        yield Text(f"  ... and {counted(len(by_time) - _MOST_KERNELS, 'more launch', 'more')}")


def _kernel(kernel: KernelProfile, result: ProfileResult) -> Iterator[RenderableType]:
    k = kernel.counters
    named = kernel.time_class.name if kernel.time_class else "class not known"
    yield Text(f"  {_short(k.name)}: {named}, {figure(k.time_us, 'us')}", style="bold")
    rows = list(_percents(k))
    if rows:
        table = Table.grid(padding=(0, 2, 0, 0))
        for name, percent, said in rows:
            table.add_row(Text(name), Text(bar(percent)), Text(f"{percent:5.1f} %"), Text(said))
        yield Padding(table, (0, 0, 0, 4))
    for label, text in _facts(k, result):
        yield Padding(_line(label, text), (0, 0, 0, 4))


def _percents(k: KernelCounters) -> Iterator[tuple[str, float, str]]:
    def rates(read: float | None, write: float | None) -> str:
        return f"{figure(read, 'GB/s')} read, {figure(write, 'GB/s')} written"

    known: list[tuple[str, float | None, str]] = [
        ("DRAM", k.dram_percent, rates(k.dram_read_gb_per_s, k.dram_write_gb_per_s)),
        ("L2", k.l2_percent, rates(k.l2_read_gb_per_s, k.l2_write_gb_per_s)),
        ("L1, shared", k.l1_percent, ""),
        *((f"pipe {name}", k.pipes_percent[name], "") for name in _busiest(k.pipes_percent)),
        ("L1 hits", k.l1_hit_percent, "of sectors"),
        ("L2 hits", k.l2_hit_percent, "of sectors"),
        ("occupancy", k.occupancy_achieved_percent, _occupancy(k)),
        *((f"stall {s.reason}", s.percent, "of the waiting") for s in k.top_stalls),
    ]
    for name, percent, said in known:
        if percent is not None:
            yield name, percent, said


def _busiest(pipes: dict[str, float]) -> list[str]:
    return sorted(pipes, key=lambda name: -pipes[name])[:3]


def _occupancy(k: KernelCounters) -> str:
    by = f", by {k.occupancy_limiter}" if k.occupancy_limiter else ""
    return f"of {figure(k.occupancy_theoretical_percent, '%')} possible{by}"


def _facts(k: KernelCounters, result: ProfileResult) -> Iterator[tuple[str, str]]:
    shared = [b for b in (k.shared_static_bytes, k.shared_dynamic_bytes) if b is not None]
    size = f"{_dims(k.grid)} blocks of {_dims(k.block)}, {figure(k.waves)} waves"
    yield (
        "size",
        f"{size}; {k.registers_per_thread or NOT_MEASURED} registers a thread, "
        + (f"{amount(sum(shared))} shared" if shared else f"shared {NOT_MEASURED}"),
    )
    for label, access in (
        ("loads", k.global_loads),
        ("stores", k.global_stores),
        ("local", k.local_loads),
    ):
        if access is not None and access.requests:
            yield label, _access(access)
    for label, s in (("sh. loads", k.shared_loads), ("sh. st.", k.shared_stores)):
        if s is not None and s.wavefronts:
            share = None if s.conflict_share is None else 100 * s.conflict_share
            yield label, f"{s.wavefronts} wavefronts, {figure(share, '%')} of them by conflicts"
    if any(k.memory_instructions_by_bits.values()):
        counts = k.memory_instructions_by_bits.items()
        yield "widths", ", ".join(f"{n} of {bits} bits" for bits, n in counts if n)
    if k.eligible_warps is not None:
        yield (
            "warps",
            f"{figure(k.eligible_warps)} of {figure(k.active_warps)} a scheduler could issue",
        )
    if k.flops is not None:
        ridge = result.analysis.ridge_point if result.analysis else None
        yield (
            "FLOPs",
            f"{decimal(float(k.flops), 'FLOP')}, {figure(k.intensity)} a byte of DRAM; ridge "
            f"point {figure(ridge)}",
        )


def _access(a: Access) -> str:
    share = None if a.efficiency is None else 100 * a.efficiency
    return (
        f"{figure(a.sectors_per_request)} sectors a request, ideal "
        f"{figure(a.ideal_sectors_per_request)} for {figure(a.bytes_per_lane, 'bytes')} a lane: "
        f"efficiency {figure(share, '%')}"
    )


def _hint(hint: Hint) -> Iterator[RenderableType]:
    of = f" in {_short(hint.kernel)}" if hint.kernel else ""
    said = f"{hint.rule}{of}: {figure(hint.value)} {hint.unit} {hint.what}"
    yield _line("hint", f"{said} (threshold {figure(hint.threshold)})")
    yield _line("", Text(f"try: {hint.advice}", style="green"))


def _table(*columns: str, names: bool = False) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, column in enumerate(columns):
        # Names give way, figures never.
        table.add_column(
            Text(column),
            justify="left" if i == 0 else "right",
            overflow="fold",
            no_wrap=i > 0,
            ratio=1 if i == 0 and names else None,
        )
    return table
