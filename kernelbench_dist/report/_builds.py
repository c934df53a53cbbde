"""Extensions that a submission builds: the compiler's messages and what each kernel uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelbench_dist.harness._results import Build, Diagnostic, KernelResources
from kernelbench_dist.report._figures import amount, counted, figure, one_line
from kernelbench_dist.report._layout import paragraph, quoted, table

_MOST_LOG_LINES = 12
_ORDER = {"error": 0, "warning": 1, "note": 2}


def builds(
    all_builds: Sequence[Build], *, most_diagnostics: int = 12, most_kernels: int = 12
) -> Iterator[str]:
    """Each extension with its messages, errors first, and one table of all kernels.

    A failed build without a message that could be read shows the end of its log. With
    `most_kernels` 0 there is no table.
    """
    for build in all_builds:
        yield from paragraph("extension", f"{build.name}: {_how(build)}")
        ordered = sorted(build.diagnostics, key=lambda d: _ORDER[d.severity])
        for diagnostic in ordered[:most_diagnostics]:
            yield from _diagnostic(diagnostic)
        if len(ordered) > most_diagnostics:
            yield f"  ... and {len(ordered) - most_diagnostics} more messages"
        if not build.succeeded and not any(d.severity == "error" for d in ordered):
            yield from quoted(build.log, _MOST_LOG_LINES)
    kernels = [kernel for build in all_builds for kernel in build.kernels]
    if kernels and most_kernels:
        yield from table(_COLUMNS, map(_row, kernels[:most_kernels]))
    if len(kernels) > most_kernels > 0:
        yield f"  ... and {len(kernels) - most_kernels} more kernels"


def has_errors(all_builds: Sequence[Build]) -> bool:
    """Whether a build has messages that say what is wrong."""
    return any(d.severity == "error" for build in all_builds for d in build.diagnostics)


def _how(build: Build) -> str:
    took = f"in {figure(build.seconds, 's')}" if build.seconds is not None else "time not measured"
    how = "from the cache" if build.from_cache else took
    if not build.succeeded:
        return f"does not build ({how})"
    spilling = [k for k in build.kernels if k.spill_store_bytes or k.spill_load_bytes]
    parts = [how if build.from_cache else f"built {how}"]
    if build.kernels:
        parts.append(counted(len(build.kernels), "kernel"))
        parts.append(f"{len(spilling)} with spills" if spilling else "no spills")
    return ", ".join(parts)


def _diagnostic(d: Diagnostic) -> Iterator[str]:
    place = ":".join(str(part) for part in (d.file, d.line, d.column) if part is not None)
    yield f"  {one_line(place)}: {d.severity}: {one_line(d.message)}"
    if d.hint:
        yield f"      hint: {one_line(d.hint)}"


_COLUMNS = ("kernel", "arch", "registers", "shared", "constant", "stack", "spill stores, loads")


def _row(k: KernelResources) -> list[str]:
    return [
        one_line(k.name, 120),
        k.architecture,
        str(k.registers),
        amount(k.shared_bytes),
        amount(k.constant_bytes),
        amount(k.stack_bytes),
        f"{amount(k.spill_store_bytes)}, {amount(k.spill_load_bytes)}",
    ]
