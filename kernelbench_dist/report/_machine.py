"""What sanitizers and the disassembler found, and what a GPU can do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kernelbench_dist.harness._submit import function_name
from kernelbench_dist.harness.profile._results import (
    DisassembleResult,
    GpuSpecs,
    KernelCode,
    SanitizeResult,
)
from kernelbench_dist.report._builds import builds
from kernelbench_dist.report._figures import amount, decimal, figure, one_line
from kernelbench_dist.report._layout import paragraph, quoted, table

_MOST_FINDINGS = 4


def sanitized(result: SanitizeResult) -> Iterator[str]:
    """Each tool with its verdict, then what it printed of the first findings."""
    if not result.checks:
        return
    rows = [(c.tool, str(c.verdict), one_line(c.reason, 300)) for c in result.checks]
    yield from table(("tool", "verdict", "because"), rows)
    for check in result.checks:
        for finding in check.findings[:_MOST_FINDINGS]:
            where = f" in {one_line(finding.kernel, 60)}" if finding.kernel else ""
            yield from paragraph("found", f"{check.tool}: {one_line(finding.what)}{where}")
            yield from quoted(finding.detail, 6, end=False)
        if len(check.findings) > _MOST_FINDINGS:
            yield f"  ... and {len(check.findings) - _MOST_FINDINGS} more of {check.tool}"


def disassembled(result: DisassembleResult) -> Iterator[str]:
    """A table of the kernels, and one of the widths of their loads and stores."""
    yield from builds(result.builds, most_diagnostics=4, most_kernels=0)
    if not result.kernels:
        return
    yield from table(_RESOURCES, [_resources(k) for k in result.kernels])
    yield from table(_WIDTHS, [_widths(k) for k in result.kernels])


_RESOURCES = ("kernel", "arch", "registers", "stack", "shared", "spills st, ld", "STL, LDL")
_WIDTHS = ("kernel", "loads, bits", "stores, bits", "shared loads, bits", "async", "tensor", "bar")


def _resources(k: KernelCode) -> list[str]:
    spills = "not known"
    if k.spill_store_bytes is not None:
        spills = f"{amount(k.spill_store_bytes)}, {amount(k.spill_load_bytes)}"
    return [
        one_line(function_name(k.name), 60),
        k.architecture,
        "" if k.registers is None else str(k.registers),
        amount(k.stack_bytes),
        amount(k.shared_bytes),
        spills,
        f"{k.local_stores}, {k.local_loads}",
    ]


def _widths(k: KernelCode) -> list[str]:
    return [
        one_line(function_name(k.name), 60),
        _by_bits(k.global_loads_by_bits),
        _by_bits(k.global_stores_by_bits),
        _by_bits(k.shared_loads_by_bits),
        str(k.async_copies),
        str(k.tensor_instructions),
        str(k.barriers),
    ]


def _by_bits(counts: Mapping[int, int]) -> str:
    return ", ".join(f"{n} of {bits}" for bits, n in counts.items()) or "none"


def specified(result: GpuSpecs) -> Iterator[str]:
    """The device, then its rates: by datasheet, measured, and the second over the first."""
    if result.device_name is None:
        return
    yield from paragraph(
        "device",
        f"{result.device_name} ({result.device}), compute capability {result.compute_capability}, "
        f"{result.multiprocessors} multiprocessors, {amount(result.memory_bytes)}, L2 "
        f"{amount(result.l2_bytes)}, driver {result.driver or 'not known'}, CUDA {result.cuda}, "
        f"torch {result.torch}, SM clock {figure(result.clock_mhz, 'MHz')}",
    )
    rows = []
    for rate in result.measured:
        sheet = (
            result.datasheet_bytes_per_s
            if rate.unit == "B/s"
            else result.datasheet_flops_per_s.get(rate.name)
        )
        rows.append(
            (
                rate.name,
                "not known" if sheet is None else decimal(sheet, rate.unit),
                decimal(rate.rate, rate.unit),
                "" if sheet is None else f"{100 * rate.rate / sheet:.0f} %",
                figure(result.ridge_points.get(rate.name)) if rate.unit == "FLOP/s" else "",
            )
        )
    yield from table(("rate", "datasheet", "measured", "of it", "ridge point, FLOP a byte"), rows)
    yield from paragraph("empty", f"an empty kernel takes {figure(result.empty_kernel_us, 'us')}")
