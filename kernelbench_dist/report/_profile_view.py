"""A profile: what ran on the device, each kernel by its counters, and what to try.

It comes as the plain values of profile_kernel's result, of which any may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kernelbench_dist.report._figures import NOT_MEASURED, amount, figure, one_line
from kernelbench_dist.report._parts import Cell, Note, Part, Section, Table, table

Profile = Mapping[str, Any]


def section(profile: Profile) -> Section:
    parts = [*_said(profile)]
    if profile.get("activity"):
        parts.append(_activity(profile))
    if profile.get("kernels"):
        parts.append(_kernels(profile))
    if profile.get("hints"):
        parts.append(_hints(profile))
    return Section("profile", "Profile", tuple(parts))


def _said(profile: Profile) -> Iterator[Part]:
    """Its class, and what it lacks."""
    if held := profile.get("time_class"):
        yield Note(f"{held['name']}: {one_line(held['because'], 400)} (by {held['source']}).")
    for what in ("activity", "counters"):
        if why := profile.get(f"{what}_absent"):
            yield Note(f"{what.capitalize()}: {NOT_MEASURED}: {one_line(str(why), 400)}")
    for note in profile.get("notes") or ():
        yield Note(one_line(str(note)))


def _activity(profile: Profile) -> Table:
    rows: list[tuple[Cell | str, ...]] = []
    for a in profile["activity"]:
        launches, us = a.get("launches_per_call"), a.get("us_per_call")
        own = {True: "yes", False: "no", None: ""}[a.get("is_own")]
        rows.append(
            (
                str(a.get("kind")),
                one_line(str(a.get("name")), 160),
                Cell(figure(us), us),
                Cell("" if launches is None else f"{launches:g}", launches),
                _dims(a.get("grid")) or amount(a.get("bytes")),
                _dims(a.get("block")),
                own,
            )
        )
    columns = ("kind", "name", "us a call", "launches", "grid or bytes", "block", "own")
    caption = "The device's own record of a call, by torch.profiler."
    return table("On the device", columns, rows, figures=(2, 3), caption=caption, sorts=True)


_COUNTERS = (
    ("time_us", "us"),
    ("dram_percent", "DRAM %"),
    ("l2_percent", "L2 %"),
    ("sm_percent", "SM %"),
    ("l2_hit_percent", "L2 hits %"),
    ("occupancy_achieved_percent", "occupancy %"),
    ("registers_per_thread", "registers"),
    ("eligible_warps", "eligible warps"),
)


def _kernels(profile: Profile) -> Table:
    rows: list[tuple[Cell | str, ...]] = []
    for kernel in profile["kernels"]:
        counters = kernel.get("counters") or {}
        held = kernel.get("time_class") or {}
        known = [(key, counters.get(key)) for key, _ in _COUNTERS]
        rows.append(
            (
                one_line(str(counters.get("name")), 160),
                *(Cell(figure(value) if value is not None else "", value) for _, value in known),
                one_line(str(counters.get("occupancy_limiter") or ""), 80),
                held.get("name", ""),
            )
        )
    columns = ("kernel", *(name for _, name in _COUNTERS), "limited by", "class")
    source = one_line(str(profile.get("counters_source") or "counters"), 120)
    caption = (
        f"By {source}: each launch of one call, percentages of the device's peak. Under counters, "
        "caches are cold and times longer."
    )
    figures = tuple(range(1, len(_COUNTERS) + 1))
    return table("By counters", columns, rows, figures=figures, caption=caption, sorts=True)


def _hints(profile: Profile) -> Table:
    rows: list[tuple[Cell | str, ...]] = []
    for h in profile["hints"]:
        unit = str(h.get("unit") or "")
        measured, threshold = (figure(h.get(k), unit) for k in ("value", "threshold"))
        said = (one_line(str(h.get(k) or ""), 240) for k in ("what", "kernel"))
        rows.append((*said, measured, threshold, one_line(str(h.get("advice") or ""), 400)))
    columns = ("what", "kernel", "measured", "threshold", "what to try")
    return table("Hints", columns, rows, figures=(2, 3))


def _dims(dims: Any) -> str:
    return " x ".join(map(str, dims)) if dims else ""


def ceilings(specs: Mapping[str, Any] | None, dtype: str) -> Mapping[str, Any] | None:
    """Of get_gpu_specs' result: rates that were measured, for a roofline; None where there is none.

    dtype: whose products of matrices are the ceiling of arithmetic.
    """
    rates = {r["name"]: r["rate"] for r in (specs or {}).get("measured") or ()}
    if "copy" not in rates:
        return None
    return {
        "source": f"a copy and products of {dtype} matrices, as measured on this device",
        "bytes_per_s": rates["copy"],
        "flops_per_s": rates.get(dtype),
    }
