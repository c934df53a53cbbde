"""Nsight Compute's raw page, as CSV, read into `KernelCounters`: text in, values out.

The page has a line of columns, a line of their units, and a line for each launch. Before it there
may be lines that the tool prints ("==PROF== ..."). Numbers may have commas between thousands; what
a chip lacks is empty or "n/a".
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence

from kernelbench_dist.harness.profile import _counters
from kernelbench_dist.harness.profile._counters import (
    SECTOR_BYTES,
    Access,
    KernelCounters,
    SharedAccess,
    Stall,
)

_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio")
_SCALE = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9,
          "T": 1e12}  # fmt: skip
_UNITS = {"second": "s", "s": "s", "byte": "byte", "hz": "hz", "Hz": "hz"}
_LIMITS = {
    "blocks": "blocks",
    "registers": "registers",
    "shared_mem": "shared memory",
    "warps": "warps",
    "barriers": "barriers",
}


_MOST_PERCENT = 105.0  # some noise is told as it is


class NoPageError(ValueError):
    """The text holds no raw page."""


def read_raw_page(text: str) -> tuple[KernelCounters, ...]:
    """The launches on a raw page, in order.

    Raises NoPageError where there is no line of columns, as where the tool failed.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        raise NoPageError('no line that begins with "ID", the first column of Nsight Compute\'s')
    columns, *rows = csv.reader(line for line in lines[start:] if line.startswith('"'))
    units: Sequence[str] = [""] * len(columns)
    if rows and not rows[0][0].strip():
        units, *rows = rows
    found = []
    for row in rows:
        if len(row) == len(columns) and row[0].strip().isdigit():
            found.append(
                _kernel(_Row(dict(zip(columns, zip(row, units, strict=True), strict=True))))
            )
    return tuple(found)


class _Row:
    """One launch: its columns' values in base units."""

    def __init__(self, cells: Mapping[str, tuple[str, str]]) -> None:
        self.cells = cells

    def text(self, name: str) -> str:
        return self.cells.get(name, ("", ""))[0]

    def number(self, *names: str) -> float | None:
        """The first of the columns that holds a number, in s, bytes, hz or its own unit."""
        for name in names:
            value, unit = self.cells.get(name, ("", ""))
            with_point = value.replace(",", "").strip()
            try:
                number = float(with_point)
            except ValueError:
                continue
            if math.isfinite(number):
                return number * _factor(unit)
        return None

    def percent(self, *names: str) -> float | None:
        """As `number`; None where passes disagree so much that it would be impossible.

        What makes up a percentage is counted in different passes over the kernel, and a kernel of
        a microsecond is not the same in each.
        """
        value = self.number(*names)
        return None if value is None or value > _MOST_PERCENT else value

    def whole(self, *names: str) -> int | None:
        value = self.number(*names)
        return None if value is None else round(value)


def _factor(unit: str) -> float:
    """
    >>> _factor("nsecond"), _factor("Kbyte/block"), _factor("Gbyte/second"), _factor("%")
    (1e-09, 1000.0, 1000000000.0, 1.0)
    >>> _factor("us"), _factor("msecond"), _factor("block"), _factor("register/thread")
    (1e-06, 0.001, 1.0, 1.0)
    """
    first = unit.partition("/")[0].strip()
    for name in _UNITS:
        if first.endswith(name) and first[: -len(name)] in _SCALE:
            return _SCALE[first[: -len(name)]]
    return 1.0


def _kernel(row: _Row) -> KernelCounters:
    seconds = row.number("gpu__time_duration.sum")
    read, written = row.whole("dram__bytes_read.sum"), row.whole("dram__bytes_write.sum")
    l2_read = _bytes(row.whole("lts__t_sectors_op_read.sum"))
    l2_written = _bytes(row.whole("lts__t_sectors_op_write.sum"))
    issue = row.number("smsp__issue_active.avg.per_cycle_active")
    limits = {
        said: blocks
        for name, said in _LIMITS.items()
        if (blocks := row.whole(f"launch__occupancy_limit_{name}")) is not None
    }
    return KernelCounters(
        name=row.text("Kernel Name"),
        grid=_dims(row, "Grid Size", "launch__grid_dim"),
        block=_dims(row, "Block Size", "launch__block_dim"),
        time_us=None if seconds is None else 1e6 * seconds,
        sm_percent=row.percent("sm__throughput.avg.pct_of_peak_sustained_elapsed"),
        memory_percent=row.percent(
            "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
        ),
        dram_percent=row.percent(
            "dram__throughput.avg.pct_of_peak_sustained_elapsed",
            "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        ),
        l2_percent=row.percent("lts__throughput.avg.pct_of_peak_sustained_elapsed"),
        l1_percent=_elapsed(row, "l1tex__throughput.avg"),
        dram_read_bytes=read,
        dram_write_bytes=written,
        dram_read_gb_per_s=_rate(read, seconds),
        dram_write_gb_per_s=_rate(written, seconds),
        l2_read_bytes=l2_read,
        l2_write_bytes=l2_written,
        l2_read_gb_per_s=_rate(l2_read, seconds),
        l2_write_gb_per_s=_rate(l2_written, seconds),
        l1_hit_percent=row.percent("l1tex__t_sector_hit_rate.pct"),
        l2_hit_percent=row.percent("lts__t_sector_hit_rate.pct"),
        pipes_percent=_pipes(row),
        occupancy_theoretical_percent=row.percent("sm__maximum_warps_per_active_cycle_pct"),
        occupancy_achieved_percent=row.percent("sm__warps_active.avg.pct_of_peak_sustained_active"),
        occupancy_limiter=_limiter(limits),
        occupancy_limits_blocks=limits,
        waves=row.number("launch__waves_per_multiprocessor"),
        registers_per_thread=row.whole("launch__registers_per_thread"),
        shared_static_bytes=row.whole("launch__shared_mem_per_block_static"),
        shared_dynamic_bytes=row.whole("launch__shared_mem_per_block_dynamic"),
        global_loads=_access(row, "global", "ld"),
        global_stores=_access(row, "global", "st"),
        local_loads=_access(row, "local", "ld"),
        local_stores=_access(row, "local", "st"),
        shared_loads=_shared(row, "ld"),
        shared_stores=_shared(row, "st"),
        memory_instructions_by_bits={
            bits: count
            for name, bits in _counters.WIDTHS.items()
            if (count := row.whole(name)) is not None
        },
        stalls=_stalls(row),
        active_warps=row.number("smsp__warps_active.avg.per_cycle_active"),
        eligible_warps=row.number("smsp__warps_eligible.avg.per_cycle_active"),
        issue_percent=None if issue is None else 100 * issue,
        threads_per_instruction=row.number("smsp__thread_inst_executed_per_inst_executed.ratio"),
        flops_by_dtype=_flops(row),
    )


def _bytes(sectors: int | None) -> int | None:
    return None if sectors is None else SECTOR_BYTES * sectors


def _rate(nbytes: float | None, seconds: float | None) -> float | None:
    return None if nbytes is None or not seconds else nbytes / seconds / 1e9


def _dims(row: _Row, column: str, launch: str) -> tuple[int, int, int]:
    found = [int(part) for part in re.findall(r"\d+", row.text(column))]
    if len(found) != 3:
        found = [row.whole(f"{launch}_{axis}") or 1 for axis in "xyz"]
    return found[0], found[1], found[2]


def _elapsed(row: _Row, metric: str) -> float | None:
    """Percent of the peak over the whole time, from that over the active cycles if need be."""
    value = row.percent(f"{metric}.pct_of_peak_sustained_elapsed")
    if value is not None:
        return value
    active = row.percent(f"{metric}.pct_of_peak_sustained_active")
    cycles = row.number("sm__cycles_active.avg")
    elapsed = row.number("sm__cycles_elapsed.max", "gpc__cycles_elapsed.max")
    if active is None or cycles is None or not elapsed:
        return None
    return active * min(1.0, cycles / elapsed)


def _pipes(row: _Row) -> dict[str, float]:
    """By pipe. Those that issue, and for the tensor cores the cycles in which they work."""
    names = {
        match[1]
        for column in row.cells
        if (match := re.match(r"sm__inst_executed_pipe_([a-z0-9]+)\.avg\.pct_of_peak", column))
    }
    found = {}
    for name in sorted(names | {"fma", "tensor"}):
        metrics = [f"sm__pipe_{name}_cycles_active.avg", f"sm__inst_executed_pipe_{name}.avg"]
        if name not in ("fma", "tensor"):
            metrics.reverse()
        for metric in metrics:
            if (value := _elapsed(row, metric)) is not None:
                found[name] = value
                break
    return found


def _limiter(limits: Mapping[str, int]) -> str | None:
    if not limits:
        return None
    least = min(limits.values())
    return " and ".join(name for name, blocks in limits.items() if blocks == least)


def _access(row: _Row, space: str, op: str) -> Access | None:
    requests = row.whole(f"l1tex__t_requests_pipe_lsu_mem_{space}_op_{op}.sum")
    sectors = row.whole(f"l1tex__t_sectors_pipe_lsu_mem_{space}_op_{op}.sum")
    if requests is None or sectors is None:
        return None
    asked = row.whole(f"smsp__sass_data_bytes_mem_{space}_op_{op}.sum")
    per_sector = row.number(f"smsp__sass_average_data_bytes_per_sector_mem_{space}_op_{op}.ratio")
    if asked is None and per_sector is not None:
        asked = round(per_sector * sectors)
    each = asked / requests if asked is not None and requests else None
    return Access(
        requests=requests,
        sectors=sectors,
        bytes_asked=asked,
        sectors_per_request=sectors / requests if requests else None,
        ideal_sectors_per_request=None if each is None else each / SECTOR_BYTES,
        bytes_per_lane=None if each is None else each / 32,
        efficiency=min(1.0, asked / (SECTOR_BYTES * sectors))
        if asked is not None and sectors
        else None,
    )


def _shared(row: _Row, op: str) -> SharedAccess | None:
    wavefronts = row.whole(f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum")
    conflicts = row.whole(f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum")
    if wavefronts is None or conflicts is None:
        return None
    return SharedAccess(
        requests=row.whole(
            f"smsp__sass_inst_executed_op_shared_{op}.sum",
            f"smsp__inst_executed_op_shared_{op}.sum",
        ),
        wavefronts=wavefronts,
        conflicts=conflicts,
        conflict_share=min(1.0, conflicts / wavefronts) if wavefronts else None,
    )


def _stalls(row: _Row) -> tuple[Stall, ...]:
    """Each reason's share of all waiting. A warp that issues ("selected") does not wait."""
    waits = {
        match[1]: value
        for column in row.cells
        if (match := _STALL.fullmatch(column))
        and match[1] != "selected"
        and not match[1].endswith("_not_issued")  # a part of the reason without that ending
        and (value := row.number(column)) is not None
    }
    total = sum(waits.values())
    if total <= 0:
        return ()
    ordered = sorted(waits.items(), key=lambda item: -item[1])
    return tuple(Stall(reason=name, percent=100 * value / total) for name, value in ordered)


def _flops(row: _Row) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, (dtype, each) in _counters.THREAD_OPS.items():
        if (count := row.whole(name)) is not None:
            found[dtype] = found.get(dtype, 0) + each * count
    for name, dtype in _counters.TENSOR_OPS.items():
        if (count := row.whole(name)) is not None:
            found[dtype] = found.get(dtype, 0) + count
    return found
