"""Runs a program with a time limit, under the supervisor, which ends all that it has started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from kernelbench_dist.harness._process import Worker

Launcher: TypeAlias = Callable[
    [Sequence[str], Path, Mapping[str, str], float], "tuple[int | None, str]"
]
"""(argv, cwd, env, timeout_s) -> (exit status or None after the time limit, stdout and stderr)"""


def launch(
    argv: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    timeout_s: float,
    on_output: Callable[[str], None] | None = None,
) -> tuple[int | None, str]:
    """Run a program; at the end, or after `timeout_s`, kill what is left of it.

    The output is read all the time, so that a full pipe cannot stop the program, and its last
    1 MiB is kept. `on_output` is called in another thread with each piece as it comes. `env` are
    all its variables.

    Returns:
        The exit status, None if it ran past the limit; and the output, stderr among it.
    """
    with Worker(
        argv=argv,
        cwd=str(cwd),
        environment=env,
        time_limit_s=timeout_s,
        sandbox=False,
        on_output=on_output,
    ) as worker:
        status, why = worker.wait()
        return (None if why == "time" else status), worker.output()
