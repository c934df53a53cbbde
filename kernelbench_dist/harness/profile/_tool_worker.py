"""A worker under a tool that starts it: Nsight Compute, compute-sanitizer.

The tool is started by the supervisor, as the judge's workers are, and starts a Python in its turn,
which meets the judge at a socket in a folder of theirs alone. That process takes the device before
it gives up its rights, so that the tool is in it by then, and only then serves as any worker does:
what a submission may write is its own folder and the one where the tool keeps its lock. What the
tool prints goes to a file that the submission cannot reach.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelbench_dist.harness._channel import Channel
from kernelbench_dist.harness._process import Worker, WorkerEndedError
from kernelbench_dist.harness.profile._under_tool import reachable

_START_S = 300.0
_MODULE = "kernelbench_dist.harness.profile._under_tool"


class ToolRun:
    """Folders of one run of a tool; `with` removes them. `worker` is a `Start` for a `Side`."""

    def __init__(
        self,
        command: Sequence[str],
        device: str,
        *,
        time_limit_s: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """command: the tool and its options, where "{log}" stands for the file it is to write."""
        self.folder = Path(tempfile.mkdtemp(prefix="kernelbench_dist-tool-"))
        self.log = self.folder / "log.txt"
        self.work = self.folder / "work"
        self.work.mkdir()
        self.command = [part.replace("{log}", str(self.log)) for part in command]
        self.device = device
        self.time_limit_s = time_limit_s
        self.environment = dict(environment or {})
        self.started: ToolWorker | None = None

    def __enter__(self) -> ToolRun:
        return self

    def __exit__(self, *_: object) -> None:
        if self.started is not None:
            self.started.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def worker(self, *, memory_limit_bytes: int | None = None, sandbox: bool = True) -> Worker:
        return ToolWorker(self, memory_limit_bytes, sandbox)

    def finish(self) -> str:
        """End the worker, wait until the tool has ended too, and return its file's text."""
        if self.started is not None:
            self.started.channel.close()
            self.started.wait()
        try:
            return self.log.read_text(errors="replace")
        except OSError:
            return ""

    def printed(self) -> str:
        """What the tool and the worker printed, mixed: no place for figures."""
        return self.started.output() if self.started is not None else ""


class ToolWorker(Worker):
    """A worker that a tool has started."""

    def __init__(self, run: ToolRun, memory_limit_bytes: int | None, sandbox: bool) -> None:
        address = str(run.folder / "judge")
        with socket.socket(socket.AF_UNIX) as listening:
            with reachable(address) as near:
                listening.bind(near)
            listening.listen(1)
            child = [sys.executable, "-m", _MODULE, address, str(run.work), run.device]
            super().__init__(
                memory_limit_bytes=memory_limit_bytes,
                time_limit_s=run.time_limit_s,
                argv=[*run.command, *child, "confined" if sandbox else "free"],
                environment={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path),
                    "TMPDIR": str(run.work),
                    **run.environment,
                },
            )
            run.started = self  # also where it goes wrong from here on: its output says why
            self._meet(listening)

    def _meet(self, listening: socket.socket) -> None:
        """Take the connection of the process that the tool starts, unless the tool ends before."""
        ready, _, _ = select.select([listening, self._status], [], [], _START_S)
        if listening not in ready:
            self.wait() if ready else self.close()
            said = self.output()
            raise WorkerEndedError("exit", None, "the tool did not start the worker", said)
        connection, _ = listening.accept()
        self.channel.close()
        self.channel = Channel(connection)
