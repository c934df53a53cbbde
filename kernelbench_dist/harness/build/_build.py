"""Builds a request, or finds it built: the judge's side."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import kernelbench_dist
from kernelbench_dist.harness._results import Build, Diagnostic, Frozen
from kernelbench_dist.harness.build import _cache
from kernelbench_dist.harness.build._environment import Environment, current_environment, problem
from kernelbench_dist.harness.build._launch import Launcher, launch
from kernelbench_dist.harness.build._messages import read_diagnostics, read_kernels
from kernelbench_dist.harness.build._request import BuildRequest

LOG_BYTES = 64_000


class BuildOutcome(Frozen):
    """What came of a request. `library` is None where it was not built."""

    build: Build
    library: Path | None
    module_name: str
    """to import it under: another for other contents, though the extension's name be the same"""
    timed_out: bool = False
    environment_error: str | None = None
    """why this machine cannot build it, whatever its sources are"""


def build(
    request: BuildRequest,
    *,
    cache_dir: Path | str | None = None,
    timeout_s: float = 600.0,
    on_output: Callable[[str], None] | None = None,
    run: Launcher | None = None,
) -> BuildOutcome:
    """Compile a request in a process of its own, or take the library from the cache.

    Of the submission only the texts in the request are used, and nothing of it is run: neither its
    Python nor, as the library is not loaded, its static constructors.

    Args:
        request: what to build.
        cache_dir: where builds are kept, by default `default_cache_dir()`. Those who judge share
            it; those who are judged must not be able to write there.
        timeout_s: the limit for all compilers together, in seconds.
        on_output: called with pieces of the compilers' output as they come, in another thread;
            with a `run` of your own, once at the end.
        run: starts the builder, as `launch` does; to be given to supervise it in another way.

    Returns:
        The outcome. A failure is no exception, and is not kept: its cause may be the machine's
        (memory, a full disk), and it takes less time than a success.
    """
    cache = Path(cache_dir).absolute() if cache_dir is not None else _cache.default_cache_dir()
    environment = current_environment(request.needs_cuda)
    key = _cache.cache_key(request, environment)
    # PyInit_ is followed by the last part alone, which thus stays the name that the submission
    # gave: its sources may spell it out, in PYBIND11_MODULE or for torch.ops.
    module_name = f"kernelbench_dist_build_{key[:12]}.{request.name}"
    if entry := _cache.load_entry(cache, key):
        found = entry[0].model_copy(update={"from_cache": True, "seconds": None})
        return BuildOutcome(build=found, library=entry[1], module_name=module_name)
    if sentence := problem(environment, request.needs_cuda, request.extra_cuda_cflags):
        refused = _failure(request, key, None, (_message("environment", sentence),), sentence)
        return BuildOutcome(
            build=refused, library=None, module_name=module_name, environment_error=sentence
        )
    _cache.remove_leftovers(cache)
    folder = _cache.new_folder(cache)
    try:
        (folder / "request.json").write_text(request.model_dump_json())
        (folder / "tmp").mkdir()
        argv = [sys.executable, "-m", "kernelbench_dist.harness.build._builder"]
        start = time.monotonic()
        launcher = run or functools.partial(launch, on_output=on_output)
        status, output = launcher(argv, folder, _variables(folder, environment), timeout_s)
        seconds = time.monotonic() - start
        if run is not None and on_output is not None:
            on_output(output)
        output = output.replace(f"{folder}/work/", "")
        diagnostics = read_diagnostics(output, request)
        log = output.encode()[-LOG_BYTES:].decode(errors="ignore")
        report = _report(folder) if status == 0 else {}
        library = folder / "work" / f"{request.name}.so"
        if status != 0 or not report or not library.is_file():
            diagnostics = _explain(folder, status, timeout_s, diagnostics)
            failed = _failure(request, key, seconds, diagnostics, log)
            return BuildOutcome(
                build=failed, library=None, module_name=module_name, timed_out=status is None
            )
        built = Build(
            name=request.name,
            key=key,
            from_cache=False,
            seconds=seconds,
            succeeded=True,
            diagnostics=diagnostics,
            kernels=read_kernels(output),
            log=log,
        )
        path = _cache.store_entry(cache, library, built, report["dependencies"])
        return BuildOutcome(build=built, library=path, module_name=module_name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def load_built(module_name: str, library: Path | str, is_python_module: bool) -> ModuleType | str:
    """Load a library as torch's load_inline does: a module, or the path where it is none."""
    if not is_python_module:
        torch.ops.load_library(str(library))
        return str(library)
    spec = importlib.util.spec_from_file_location(module_name, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _variables(folder: Path, environment: Environment) -> dict[str, str]:
    """The builder's environment: temporary files in its folder, messages in English."""
    package = str(Path(kernelbench_dist.__file__).parents[1])
    variables = {
        **os.environ,
        # torch looks for ninja on PATH alone, and this environment may not be the active one.
        "PATH": f"{sysconfig.get_path('scripts')}:{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])),
        "PYTHONSAFEPATH": "1",  # nothing is imported from the working folder
        "PYTHONUNBUFFERED": "1",
        "TORCH_EXTENSIONS_DIR": str(folder / "work"),
        "TMPDIR": str(folder / "tmp"),
        "LC_ALL": "C",
    }
    if environment.cuda_home is not None:
        variables["CUDA_HOME"] = environment.cuda_home
        variables["TORCH_CUDA_ARCH_LIST"] = environment.architectures
    return variables


def _report(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / "report.json").read_text()))
    except (OSError, ValueError):
        return {}


def _message(file: str, text: str) -> Diagnostic:
    return Diagnostic(file=file, line=None, column=None, severity="error", message=text)


def _explain(
    folder: Path, status: int | None, timeout_s: float, diagnostics: tuple[Diagnostic, ...]
) -> tuple[Diagnostic, ...]:
    """The diagnostics, with a message in front of them where no compiler says what went wrong."""
    if status is None:
        return (_message("build", f"it was not done after {timeout_s:g} s"), *diagnostics)
    if error := _report(folder).get("error"):
        return (_message("build", str(error)), *diagnostics)
    if any(diagnostic.severity == "error" for diagnostic in diagnostics):
        return diagnostics
    ended = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return (_message("build", f"the builder {ended}: see the log"), *diagnostics)


def _failure(
    request: BuildRequest,
    key: str,
    seconds: float | None,
    diagnostics: tuple[Diagnostic, ...],
    log: str,
) -> Build:
    return Build(
        name=request.name,
        key=key,
        from_cache=False,
        seconds=seconds,
        succeeded=False,
        diagnostics=diagnostics,
        kernels=(),
        log=log,
    )
