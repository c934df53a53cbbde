"""Processes of this machine that judge, and what every executor of a sweep does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Any, Protocol

from kernelbench_dist.harness.sweep import _judge
from kernelbench_dist.harness.sweep._plan import Job

# By its name: a module that is imported already cannot be run without a warning.
_PROGRAM = "kernelbench_dist.harness.sweep._serve"
_END_S = 10.0
Finished = list[tuple[Job, dict[str, Any]]]


class Pool(Protocol):
    """What runs jobs. `close` stops all that still run."""

    def has_room(self) -> bool: ...

    def is_busy(self) -> bool: ...

    def submit(self, job: Job) -> None: ...

    def finished(self) -> Finished:
        """Wait until there is something, for about a second at most, and hand it out."""
        ...

    def close(self) -> None: ...


class Judge:
    """A process that judges one job at a time, in a session of its own."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.connection, there = Pipe()
        # "a": so that the file can be emptied while the process holds it open.
        self._said = tempfile.TemporaryFile("a+b")  # noqa: SIM115 (close() closes it)
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, str(there.fileno())],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                cwd="/",
                env={**os.environ, "PYTHONPATH": paths, **environment},
                start_new_session=True,
            )
        except BaseException:
            self.connection.close()
            self._said.close()
            raise
        finally:
            there.close()
        self.job: Job | None = None
        self.deadline = self._started = 0.0

    def start(self, job: Job, limit_s: float) -> None:
        """Raises OSError where the process is gone."""
        self._said.truncate(0)
        self.connection.send(job)
        self.job, self._started = job, time.monotonic()
        self.deadline, self._limit_s = self._started + limit_s, limit_s

    def answer(self) -> tuple[Job, dict[str, Any]]:
        """The result of the job. What ends the process, or its time, is an ENVIRONMENT_ERROR.

        To be called when there is something to read or the deadline has passed.
        """
        assert self.job is not None
        job, self.job = self.job, None
        try:
            if self.connection.poll():
                return job, json.loads(self.connection.recv_bytes())
            reason = f"the judge did not finish within {self._limit_s:.0f} s"
        except (EOFError, OSError):
            reason = ""
        self.close(kill=bool(reason))
        reason = reason or f"the judge's process {_ending(self._process.returncode)}"
        return job, _judge.no_verdict(job, reason, self.said, time.monotonic() - self._started)

    def close(self, *, kill: bool = True) -> None:
        """End it; its workers end with it. kill=False: once it has done what it does by itself."""
        self.connection.close()
        if kill:
            self._process.kill()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.said = ""
        if not self._said.closed:
            self._said.seek(0)
            self.said = self._said.read()[-4000:].decode(errors="replace")
            self._said.close()

    @property
    def is_closed(self) -> bool:
        return self.connection.closed


class LocalPool:
    """`slots` judges, each started when it is first needed and again after its end."""

    def __init__(self, slots: int, limit_s: float, environment: Mapping[str, str]) -> None:
        self._slots = slots
        self._limit_s = limit_s
        self._environment = environment
        self._judges: list[Judge] = []
        self._failed: Finished = []

    def has_room(self) -> bool:
        return sum(judge.job is not None for judge in self._judges) < self._slots

    def is_busy(self) -> bool:
        return bool(self._failed) or any(judge.job is not None for judge in self._judges)

    def submit(self, job: Job) -> None:
        for judge in [j for j in self._judges if j.job is None]:
            try:
                judge.start(job, self._limit_s)
                return
            except OSError:  # it died while it had nothing to do
                judge.close()
                self._judges.remove(judge)
        try:
            judge = Judge(self._environment)
            self._judges.append(judge)
            judge.start(job, self._limit_s)
        except OSError as error:
            reason = f"the judge's process does not start: {error}"
            self._failed.append((job, _judge.no_verdict(job, reason)))

    def finished(self) -> Finished:
        if self._failed:
            done, self._failed = self._failed, []
            return done
        busy = [judge for judge in self._judges if judge.job is not None]
        ready = wait([judge.connection for judge in busy], timeout=1.0)
        late = time.monotonic()
        done = [j.answer() for j in busy if j.connection in ready or j.deadline < late]
        self._judges = [judge for judge in self._judges if not judge.is_closed]
        return done

    def close(self) -> None:
        for judge in self._judges:  # all at once, as each takes a moment to end
            judge.connection.close()
        for judge in self._judges:
            judge.close(kill=judge.job is not None)
        self._judges = []


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
