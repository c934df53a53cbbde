"""sanitize: compute-sanitizer's tools on one call of a submission, each as a verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from kernelbench_dist.harness import _device
from kernelbench_dist.harness._judge import (
    Head,
    check_syntax,
    make_limits,
    make_options,
    one_size,
    open_problem,
)
from kernelbench_dist.harness._problem import Draw, derived
from kernelbench_dist.harness._session import Progress, Session, silent
from kernelbench_dist.harness._side import JudgedError
from kernelbench_dist.harness._submission import read_submission
from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.harness.profile._results import (
    SanitizerCheck,
    SanitizeResult,
    SanitizerFinding,
)
from kernelbench_dist.harness.profile._tool_worker import ToolRun
from kernelbench_dist.harness.profile._tools import find_tool, lacks

# What each looks for, and the verdict of who is found.
TOOLS = {
    "memcheck": ("accesses out of bounds or misaligned", Verdict.RUNTIME_ERROR),
    "racecheck": ("races in shared memory", Verdict.NONDETERMINISTIC),
    "initcheck": ("reads of memory that nobody has written", Verdict.NONDETERMINISTIC),
    "synccheck": ("barriers that not all threads reach", Verdict.RUNTIME_ERROR),
}
_RUN_S = 600.0
_MOST_FINDINGS = 20
_MARK = "========="
# Warnings of racecheck are about hazards that do no harm as the warps happen to run.
_SUMMARY = re.compile(r"SUMMARY: (?:(\d+) errors?$|.*\((\d+) errors?, \d+ warnings?\))")
_KERNEL = re.compile(r"(?:^(?:at )?|\bat )(?:0x[0-9a-f]+ in )?((?:(?! at ).)+?)\+0x[0-9a-f]+")


def sanitize(
    source: str | Path,
    problem: str | Path,
    *,
    tools: Sequence[str] | None = None,
    dtype: str | torch.dtype | None = None,
    sizes: str | Mapping[str, int] | None = None,
    seed: int | None = None,
    device: str | None = None,
    backward: bool | None = None,
    timeout_s: float = 300.0,
    build_timeout_s: float = 600.0,
    progress: Progress | None = None,
) -> SanitizeResult:
    """Run one call under compute-sanitizer, once for each of its tools.

    Every tensor is an allocation of its own, that ends with its last element
    (PYTORCH_NO_CUDA_MEMORY_CACHING=1), so that an access beyond it is seen. Answers are not
    compared.

    Args:
        source, problem, dtype, seed, device, backward, build_timeout_s, progress: as for
            `run_correctness`.
        sizes: as for `profile_kernel`. Small ones will do: the tools slow kernels down a lot.
        tools: of memcheck, racecheck, initcheck and synccheck; None: all.
        timeout_s: for each step of the submission, under a tool.

    Returns:
        A check for each tool. One that could not run is an ENVIRONMENT_ERROR with its reason, and
        says nothing about the submission.

    Raises:
        FileNotFoundError, ProblemError: no such file or problem.
        ValueError: an argument's value, named.
    """
    if isinstance(tools, str):
        raise ValueError(f"tools is {tools!r}; a list of names is accepted")
    wanted = list(TOOLS) if tools is None else list(tools)
    for name in wanted:
        if name not in TOOLS:
            raise ValueError(f"tools hold {name!r}; {', '.join(TOOLS)} are accepted")
    if not wanted:
        raise ValueError(f"tools are empty; one or more of {', '.join(TOOLS)} are accepted")
    options = make_options(
        problem, dtype=dtype, sizes=sizes, trials=1, seed=seed, device=device, backward=backward
    )
    limits = make_limits(timeout_s, build_timeout_s, None)
    submission = read_submission(source)
    head, checks = Head(submission, problem), list[SanitizerCheck]()
    at: dict[str, int] | None = None
    session = Session(problem, options, limits, submission, progress=progress or silent)
    with head.judging(), session:
        check_syntax(submission)
        missing = _missing(options.device)
        if missing is None:
            info = open_problem(session, backward)
            at = one_size(sizes, info)
            draw = _ready(session, at)
            checks += [_check(session, draw, name) for name in wanted]
        else:
            checks += [_absent(name, missing) for name in wanted]
        _judge(checks)
        head.reason = f"{', '.join(wanted)}: nothing was found"
    return SanitizeResult(
        **head.fields(),
        options=session.options,
        builds=tuple(session.builds),
        notes=tuple(session.notes),
        sizes=at,
        checks=tuple(checks),
    )


def _missing(device: str) -> str | None:
    """Why no tool can run here."""
    if not device.startswith("cuda"):
        return f"the device is {device}: compute-sanitizer looks at CUDA kernels alone"
    return None if find_tool("compute-sanitizer") else lacks("compute-sanitizer")


def _ready(session: Session, at: Mapping[str, int]) -> Draw:
    """Build what the submission builds, and draw its inputs, before a tool slows it down."""
    session.open_submission()
    session.construct_reference(session.options.seed, at)
    return session.draw(derived(session.options.seed, "sanitized"), jitter=False)


def _check(session: Session, draw: Draw, name: str) -> SanitizerCheck:
    session.progress(name)
    with (
        _device.exclusive(session.options.device),
        ToolRun(
            _command(name),
            session.options.device,
            time_limit_s=_RUN_S,
            environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        ) as run,
    ):
        failed = _run(session, draw, run)
        log = run.finish()
        errors, findings = read_report(log)
        if errors is None:
            failed = "; ".join(filter(None, (*_complaints(f"{log}\n{run.printed()}"), failed)))
    return verdict_of(name, errors, findings, failed)


def _command(name: str) -> list[str]:
    return [
        find_tool("compute-sanitizer") or "compute-sanitizer",
        *("--tool", name),
        *("--log-file", "{log}"),
        *("--print-limit", str(_MOST_FINDINGS)),
        *("--show-backtrace", "no"),
        *("--report-api-errors", "no"),  # what a launch returns is seen in Python, too
    ]


def _run(session: Session, draw: Draw, run: ToolRun) -> str | None:
    try:
        session.restart_submission(run.worker)
        session.construct_submission()
        session.put(draw, layout="bare")
        nothing = {"mode": "plain", "largest_output_bytes": 0, "most_bytes": 0}
        session.candidate.ask("run", {"id": draw.id, **nothing}, step="forward()")
    except JudgedError as error:
        return error.reason
    return None


def verdict_of(
    name: str, errors: int | None, findings: Sequence[SanitizerFinding], failed: str | None
) -> SanitizerCheck:
    what, verdict = TOOLS[name]
    if errors is None:
        said = f": {failed}" if failed else ""
        return _absent(name, f"it gave no summary{said}")
    if errors:
        first = f": {findings[0].what}" if findings else ""
        where = f", in {findings[0].kernel}" if findings and findings[0].kernel else ""
        reason = f"{errors} report(s) of {what}{first}{where}"
        return SanitizerCheck(
            tool=name, verdict=verdict, reason=reason, errors=errors, findings=tuple(findings)
        )
    warned = f", and {len(findings)} warning(s)" if findings else ""
    if failed is not None:
        return SanitizerCheck(tool=name, verdict=Verdict.RUNTIME_ERROR, reason=failed, errors=0)
    return SanitizerCheck(
        tool=name,
        verdict=Verdict.PASSED,
        reason=f"no {what}{warned}",
        errors=0,
        findings=tuple(findings),
    )


def _absent(name: str, reason: str) -> SanitizerCheck:
    return SanitizerCheck(tool=name, verdict=Verdict.ENVIRONMENT_ERROR, reason=reason, errors=None)


def _judge(checks: Sequence[SanitizerCheck]) -> None:
    """Raise JudgedError for the first that found something, else for the first that did not run."""
    for machine in (False, True):
        for check in checks:
            of_machine = check.verdict is Verdict.ENVIRONMENT_ERROR
            if check.verdict is not Verdict.PASSED and of_machine == machine:
                raise JudgedError(check.verdict, f"{check.tool}: {check.reason}")


def _complaints(text: str) -> list[str]:
    """What a tool that gave no summary said, and nobody else."""
    said = [line.removeprefix(_MARK).strip() for line in text.splitlines() if _MARK in line]
    return list(dict.fromkeys(s for s in said if s and s != "COMPUTE-SANITIZER"))[:4]


def read_report(text: str) -> tuple[int | None, tuple[SanitizerFinding, ...]]:
    """The number of errors, None where there is no summary; and each that was printed."""
    errors: int | None = None
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if not line.startswith(_MARK):
            continue
        said = line.removeprefix(_MARK).strip()
        if match := _SUMMARY.search(said):
            errors = (errors or 0) + int(match[1] or match[2])
        if not said or "SUMMARY:" in said or said.startswith("COMPUTE-SANITIZER"):
            blocks.append([])
        else:
            blocks[-1].append(said)
    return errors, tuple(_finding(block) for block in blocks if _is_finding(block))


def _is_finding(block: Sequence[str]) -> bool:
    return len(block) > 1 and any(_KERNEL.search(line) for line in block)


def _finding(block: Sequence[str]) -> SanitizerFinding:
    kernel = next((match[1] for line in block if (match := _KERNEL.search(line))), None)
    return SanitizerFinding(what=block[0], kernel=kernel, detail="\n".join(block[1:]))
