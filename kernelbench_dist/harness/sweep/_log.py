"""The log of a sweep: JSON lines, only ever appended to, each on the disk before it counts.

The first line names the schema. Of the others, a "run" line says who began to write, a "verdict"
line holds a finished result under "result", and an "attempt" line one that ended in
ENVIRONMENT_ERROR. A line is one write(); a process that is killed in the middle of it leaves a line
without an end, which the next run removes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kernelbench_dist._version import __version__
from kernelbench_dist.harness._results import (
    CompileResult,
    CorrectnessResult,
    Result,
    StaticResult,
    SubmitResult,
)
from kernelbench_dist.harness.sweep._result import SCHEMA, SweepEntry

_HEAD = json.dumps({"schema": SCHEMA})[:-1].encode()
_TYPES = {t.tool: t for t in (StaticResult, CompileResult, CorrectnessResult, SubmitResult)}


class LogError(ValueError):
    """The file is no log of a sweep, or another sweep is writing to it."""


class Log:
    """A log that is open for appending, by this process alone. A context manager.

    `finished` holds the verdicts by key, in the order of the log.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        is_new = not self.path.exists()
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            self._lock()
            self.finished = self._read()
            self._append({"line": "run", **_run()})
            if is_new:
                _sync_folder(self.path.absolute().parent)
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def add_verdict(
        self, key: str, submission: str, problem: str, result: dict[str, Any]
    ) -> SweepEntry:
        """Write a finished result; it is on the disk when this returns."""
        if key in self.finished:
            raise LogError(f"{self.path} holds a verdict for {submission} already")
        line = {"line": "verdict", **_about(key, submission, problem), "result": result}
        entry = _entry(line)
        self._append(line)
        self.finished[key] = entry
        return entry

    def add_attempt(self, key: str, submission: str, problem: str, result: dict[str, Any]) -> None:
        """Write a result that is no verdict."""
        self._append({"line": "attempt", **_about(key, submission, problem), "result": result})

    def keys_written(self) -> set[str]:
        """Of the verdicts in the file, which Ctrl-C may have kept `finished` from hearing of."""
        return {line["key"] for line in _lines(self.path) if line.get("line") == "verdict"}

    def _lock(self) -> None:
        # On the log itself: it leaves no file behind, and goes with the process, however it ends.
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            runs = [line for line in _lines(self.path) if line.get("line") == "run"]
            who = f"process {runs[-1]['pid']} on {runs[-1]['host']}" if runs else "another process"
            raise LogError(
                f"{self.path} is being written by another sweep ({who}): wait for its end, or give "
                "another log"
            ) from None

    def _read(self) -> dict[str, SweepEntry]:
        """The finished verdicts. The torn line at the end is removed, and a header is written."""
        next(_lines(self.path), None)  # before anything is written: whether this is a log
        end = _repair(self._fd, self.path)
        finished: dict[str, SweepEntry] = {}
        for line in _lines(self.path):
            if line.get("line") == "verdict":
                entry = _entry(line)
                if entry.key in finished:
                    raise LogError(
                        f"{self.path} holds two verdicts with the key {entry.key}, the second for "
                        f"{entry.submission}: remove one of the lines"
                    )
                finished[entry.key] = entry
        if end == 0:
            self._append({"schema": SCHEMA, "version": __version__})
        return finished

    def _append(self, line: dict[str, Any]) -> None:
        data = json.dumps(line, allow_nan=False).encode() + b"\n"
        size = os.fstat(self._fd).st_size
        written = os.write(self._fd, data)
        if written != len(data):
            os.ftruncate(self._fd, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        os.fsync(self._fd)


def results(log: str | os.PathLike[str]) -> Iterator[tuple[SweepEntry, Result]]:
    """Every verdict of a log with its whole result, also while a sweep writes to it.

    Raises FileNotFoundError, and LogError where the file is no log of a sweep.
    """
    for line in _lines(Path(log)):
        if line.get("line") == "verdict":
            yield _entry(line), _TYPES[line["result"]["tool"]].from_dict(line["result"])


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines as objects; a line without an end is left out."""
    with open(path, "rb") as file:
        for number, data in enumerate(file, 1):
            if not data.endswith(b"\n"):
                return
            try:
                line = json.loads(data)
            except ValueError:
                line = None
            if not isinstance(line, dict):
                raise LogError(
                    f"{path}:{number} is no line of a sweep's log; without that line, what it was "
                    "about is judged again"
                )
            if number == 1 and line.get("schema") != SCHEMA:
                raise LogError(f"{path} is no log of a sweep: its first line names no {SCHEMA!r}")
            yield line


def _repair(fd: int, path: Path) -> int:
    """Remove the line at the end that a killed process did not finish. Returns the size."""
    size = os.fstat(fd).st_size
    start, tail = size, b""
    while start > 0 and b"\n" not in tail:
        step = min(start, 1 << 16)
        start -= step
        tail = os.pread(fd, step, start) + tail
    torn = tail.rpartition(b"\n")[2]
    if not torn:
        return size
    if len(torn) == size and not (torn.startswith(_HEAD) or _HEAD.startswith(torn)):
        raise LogError(f"{path} is no log of a sweep: its first line names no {SCHEMA!r}")
    with contextlib.suppress(ValueError):
        if isinstance(json.loads(torn), dict):  # whole, but for its end
            os.write(fd, b"\n")
            os.fsync(fd)
            return size + 1
    os.ftruncate(fd, size - len(torn))
    os.fsync(fd)
    return size - len(torn)


def _entry(line: dict[str, Any]) -> SweepEntry:
    result = line["result"]
    return SweepEntry(
        key=line["key"],
        submission=line["submission"],
        problem=line["problem"],
        verdict=result["verdict"],
        reason=result["reason"],
        seconds=result["seconds"],
    )


def _about(key: str, submission: str, problem: str) -> dict[str, Any]:
    return {"key": key, "submission": submission, "problem": problem}


def _run() -> dict[str, Any]:
    return {
        "version": __version__,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _sync_folder(folder: Path) -> None:
    """So that the new file's name is on the disk too."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
