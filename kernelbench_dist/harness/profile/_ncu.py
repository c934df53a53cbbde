"""Hardware counters of one call, by Nsight Compute around the submission's worker.

The clocks are left alone, caches are flushed before every pass (the tool's default), and only what
runs between cudaProfilerStart and Stop is counted: one call, after a warm-up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kernelbench_dist.harness._problem import Draw
from kernelbench_dist.harness._session import Session
from kernelbench_dist.harness._side import JudgedError
from kernelbench_dist.harness.profile import _counters
from kernelbench_dist.harness.profile._counters import KernelCounters
from kernelbench_dist.harness.profile._raw_page import NoPageError, read_raw_page
from kernelbench_dist.harness.profile._tool_worker import ToolRun
from kernelbench_dist.harness.profile._tools import find_tool, lacks

MOST_LAUNCHES = 64
_MOST_SAID = 600


@dataclass(frozen=True)
class Counted:
    """`absent` says why there are no counters. `page` is what the tool wrote, as it is."""

    kernels: tuple[KernelCounters, ...] = ()
    page: str = ""
    source: str | None = None
    absent: str | None = None


def count(session: Session, draw: Draw, *, timeout_s: float) -> Counted:
    """Counters of one call of the submission on a draw, in a process of its own.

    The submission's other worker ends; there is none afterwards. That counters cannot be had is
    no error, but said in the answer.
    """
    ncu = find_tool("ncu")
    if ncu is None:
        return Counted(absent=lacks("ncu"))
    metrics = list(_counters.METRICS)
    for attempt in (1, 2):
        with ToolRun(command(ncu, metrics), session.options.device, time_limit_s=timeout_s) as run:
            failed = _run(session, draw, run)
            page = run.finish()
            text = f"{page}\n{run.printed()}"
        try:
            kernels = read_raw_page(page)
        except NoPageError:
            kernels = ()
        if kernels:
            return Counted(kernels, page, source=f"Nsight Compute, {_source(kernels)}")
        # Metrics that this chip or version does not have end the run: ask again without them.
        if attempt == 2 or not (unknown := _unknown(metrics, text)):
            break
        metrics = [name for name in metrics if name not in unknown]
    return Counted(page=page, absent=why(text, failed))


def command(ncu: str, metrics: list[str]) -> list[str]:
    sections = [option for name in _counters.SECTIONS for option in ("--section", name)]
    return [
        ncu,
        *("--clock-control", "none"),
        *("--profile-from-start", "off"),
        *("--launch-count", str(MOST_LAUNCHES)),
        *("--csv", "--page", "raw", "--print-units", "base"),
        *("--log-file", "{log}"),
        *sections,
        *(("--metrics", ",".join(metrics)) if metrics else ()),
    ]


def _unknown(metrics: list[str], text: str) -> list[str]:
    """Those that the tool complains of by name; all of them where it names none."""
    said = "\n".join(line for line in text.splitlines() if line.startswith("=="))
    named = [name for name in metrics if re.search(rf"\b{name.partition('.')[0]}\b", said)]
    return named or (metrics if re.search(r"ERROR.*\bmetric", said) else [])


def _run(session: Session, draw: Draw, run: ToolRun) -> str | None:
    """Have the call replayed under the tool; what went wrong, if anything did."""
    # Every step takes as much longer as there are passes.
    own, session.limits = session.limits, replace(session.limits, step_s=run.time_limit_s)
    try:
        session.restart_submission(run.worker)
        session.construct_submission()
        session.put(draw)
        session.candidate.ask("replay", {"id": draw.id}, step="replaying")
    except JudgedError as error:
        return error.reason
    finally:
        session.limits = own
    return None


def _source(kernels: tuple[KernelCounters, ...]) -> str:
    most = f", the first {MOST_LAUNCHES} launches" if len(kernels) == MOST_LAUNCHES else ""
    return f"cold caches, one kernel at a time{most}"


def why(text: str, failed: str | None) -> str:
    """In one sentence, from the tool's own messages where it has any."""
    if "ERR_NVGPUCTRPERM" in text:
        return (
            "the driver does not let this user read hardware counters (ERR_NVGPUCTRPERM): it takes "
            "root, CAP_SYS_ADMIN, or the driver's option NVreg_RestrictProfilingToAdminUsers=0"
        )
    said = [
        line.partition("== ")[2].strip()
        for line in text.splitlines()
        if line.startswith(("==ERROR==", "==WARNING=="))
    ]
    parts = [*dict.fromkeys(said), *([failed] if failed else [])]
    reason = "; ".join(parts)[:_MOST_SAID] or "it recorded no kernel"
    return f"Nsight Compute gave no counters: {reason}"
