"""Runs a program with a time limit, and ends all that it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeAlias

Launcher: TypeAlias = Callable[
    [Sequence[str], Path, Mapping[str, str], float], "tuple[int | None, str]"
]
"""(argv, cwd, env, timeout_s) -> (exit status or None after the time limit, stdout and stderr)"""

KEPT_OUTPUT = 1 << 20


def launch(
    argv: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    timeout_s: float,
    on_output: Callable[[str], None] | None = None,
) -> tuple[int | None, str]:
    """Run a program in a new session; at the end, or after `timeout_s`, kill what is left of it.

    The output is read all the time, so that a full pipe cannot stop the program, and its last
    1 MiB is kept. `on_output` is called in another thread with each piece as it comes.

    Returns:
        The exit status, None if it ran past the limit; and the output, stderr among it.
    """
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    kept = bytearray()
    reader = threading.Thread(target=_drain, args=(process.stdout, kept, on_output), daemon=True)
    reader.start()
    try:
        status: int | None = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        status = None
    finally:
        kill_session(process.pid)
        process.wait()
        # The pipe closes with its last holder. One that left the session would hold it open.
        reader.join(5)
    return status, bytes(kept).decode(errors="replace")


def kill_session(session: int) -> None:
    """Kill every process of a session, over and over until there is none.

    Not the process group alone: ninja gives each compiler a group of its own.
    """
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        members = _members(session)
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not members:
            return
        time.sleep(0.01)


def _members(session: int) -> list[int]:
    """The processes of a session that are not dead yet, from /proc."""
    found = []
    for folder in os.listdir("/proc"):
        if not folder.isdigit():
            continue
        try:
            # The name before the last bracket may hold anything; then: state, ppid, pgrp, session.
            stat = Path("/proc", folder, "stat").read_text(errors="replace").rpartition(")")[2]
        except OSError:  # it has just ended
            continue
        fields = stat.split()
        if fields[0] not in "ZX" and int(fields[3]) == session:
            found.append(int(folder))
    return found


def _drain(pipe: IO[bytes], kept: bytearray, on_output: Callable[[str], None] | None) -> None:
    with pipe:
        while piece := os.read(pipe.fileno(), 1 << 16):
            kept += piece
            del kept[: max(0, len(kept) - KEPT_OUTPUT)]
            if on_output is not None:
                with contextlib.suppress(Exception):  # reading must go on, or the program stops
                    on_output(piece.decode(errors="replace"))
