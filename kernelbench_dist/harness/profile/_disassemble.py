"""disassemble: the machine code of what a submission builds. It needs no GPU."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from kernelbench_dist.harness._judge import Head, check_syntax, make_limits, make_options
from kernelbench_dist.harness._results import Build
from kernelbench_dist.harness._session import Progress, Session, silent
from kernelbench_dist.harness._side import JudgedError
from kernelbench_dist.harness._submission import read_submission
from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.harness.build import default_cache_dir
from kernelbench_dist.harness.build._cache import load_entry
from kernelbench_dist.harness.build._messages import demangle
from kernelbench_dist.harness.profile._results import DisassembleResult, KernelCode
from kernelbench_dist.harness.profile._sass import function_names, read_sass
from kernelbench_dist.harness.profile._tools import find_tool, lacks

_TOOL_S = 120.0


def disassemble(
    source: str | Path,
    problem: str | Path,
    *,
    device: str | None = None,
    timeout_s: float = 60.0,
    build_timeout_s: float = 600.0,
    progress: Progress | None = None,
) -> DisassembleResult:
    """Show the machine code of the extensions that a submission builds, kernel by kernel.

    Registers, stack and shared memory, instructions on local memory (spills, or arrays that are
    indexed at run time), and how wide the loads and stores are. The file is loaded, so that it
    asks for its builds, and need not run: this works without a GPU.

    Args:
        source, problem, device, timeout_s, build_timeout_s, progress: as for `compile_kernel`.

    Raises:
        FileNotFoundError, ProblemError: no such file or problem.
        ValueError: an argument's value, named.
    """
    options = make_options(problem, device=device, trials=1)
    limits = make_limits(timeout_s, build_timeout_s, None)
    submission = read_submission(source)
    head, tool = Head(submission, problem), find_tool("cuobjdump")
    kernels: list[KernelCode] = []
    session = Session(problem, options, limits, submission, progress=progress or silent)
    with head.judging(), session:
        check_syntax(submission)
        session.open_problem()
        stopped: JudgedError | None = None
        try:
            session.open_submission()
        except JudgedError as error:  # where it was built, it need not load
            if not any(build.succeeded for build in session.builds):
                raise
            stopped = error
        if session.builds and tool is None:
            raise JudgedError(Verdict.ENVIRONMENT_ERROR, lacks("cuobjdump"))
        for build in session.builds:
            if build.succeeded and tool is not None:
                session.progress(f"disassembling {build.name}")
                kernels += _of_build(tool, build)
        head.reason = f"{len(kernels)} kernel(s) in {len(session.builds)} extension(s)"
        if not session.builds:
            head.reason = "it builds no extension, so that there is nothing to disassemble"
        if stopped is not None:
            session.notes.append(f"it was built, and does not load here: {stopped.reason}")
    return DisassembleResult(
        **head.fields(),
        builds=tuple(session.builds),
        notes=tuple(session.notes),
        kernels=tuple(kernels),
        disassembler=tool,
    )


def _of_build(tool: str, build: Build) -> Sequence[KernelCode]:
    entry = load_entry(default_cache_dir(), build.key)
    if entry is None:
        raise JudgedError(
            Verdict.ENVIRONMENT_ERROR, f"the library of {build.name} is not in the cache any more"
        )
    return of_file(tool, entry[1], entry[0])


def of_file(tool: str, path: Path | str, build: Build | None = None) -> Sequence[KernelCode]:
    """The kernels in an object file or a library."""
    sass = _printed(tool, "--dump-sass", path)
    usage = _printed(tool, "--dump-resource-usage", path)
    names = demangle(function_names(sass))
    return read_sass(sass, usage, build.kernels if build else (), names)


def _printed(tool: str, option: str, path: Path | str) -> str:
    try:
        done = subprocess.run(
            [tool, option, str(path)], capture_output=True, text=True, timeout=_TOOL_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JudgedError(Verdict.ENVIRONMENT_ERROR, f"cuobjdump {option}: {error}") from error
    # A library without device code is no failure, and it is said on stderr.
    if done.returncode and "does not contain device code" not in done.stdout + done.stderr:
        said = (done.stderr or done.stdout).strip()[-500:]
        raise JudgedError(Verdict.ENVIRONMENT_ERROR, f"cuobjdump {option} failed: {said}")
    return done.stdout
