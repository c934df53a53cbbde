"""The supervisor: it starts workers for one judge, watches over them, and leaves none behind.

It has imported torch, so that a worker is a fork and starts in milliseconds. It adopts whatever its
workers leave behind (as a "child subreaper"), and kills it: a submission can give its daemon a
session of its own, but not another ancestor. When the judge closes the socket, or dies, all workers
are killed and the supervisor ends.

Over the control socket come requests (JSON, with three file descriptors each: the worker's channel,
its output, its status socket). On the status socket the supervisor says how the worker ended; the
judge closes it to have the worker killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any, NoReturn

import psutil

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_TICK_S = 0.2
_MOST_WAIT_S = 1.0
MOST_REQUEST_BYTES = 1 << 17  # a socket takes somewhat more in one message


@dataclass
class _Worker:
    pid: int
    folder: str
    status: socket.socket
    memory_limit_bytes: int
    deadline: float | None
    killed_for: str | None = None


class _Supervisor:
    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.workers: dict[int, _Worker] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ, None)
        # A child's end wakes select() through this pipe.
        wake_up, written = os.pipe()
        os.set_blocking(wake_up, False)
        os.set_blocking(written, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        self.selector.register(wake_up, selectors.EVENT_READ, wake_up)

    def serve(self) -> None:
        tick = 0.0
        while True:
            for key, _ in self.selector.select(_TICK_S if self.workers else None):
                if key.fileobj is self.control:
                    if not self._start():
                        self._end()
                        return
                elif isinstance(key.data, _Worker):
                    self._kill(key.data, "asked")
                else:
                    with contextlib.suppress(BlockingIOError):
                        os.read(key.data, 4096)
            self._reap()
            if time.monotonic() >= tick:
                self._watch()
                tick = time.monotonic() + _TICK_S

    def _start(self) -> bool:
        """Fork a worker for the next request. False: the judge is gone."""
        data, fds, _, _ = socket.recv_fds(self.control, MOST_REQUEST_BYTES, 3)
        if not data or len(fds) != 3:
            return False
        request = json.loads(data)
        request["folder"] = tempfile.mkdtemp(prefix="kernelbench_dist-")
        pid = os.fork()
        if pid == 0:
            _become_worker(request, *fds)
        channel, output, status = fds
        os.close(channel)
        os.close(output)
        limit = request["time_limit_s"]
        worker = _Worker(
            pid=pid,
            folder=request["folder"],
            status=socket.socket(fileno=status),
            memory_limit_bytes=request["memory_limit_bytes"],
            deadline=None if limit is None else time.monotonic() + limit,
        )
        self.workers[pid] = worker
        self.selector.register(worker.status, selectors.EVENT_READ, worker)
        return True

    def _kill(self, worker: _Worker, reason: str) -> None:
        worker.killed_for = worker.killed_for or reason
        for process in _tree(worker.pid):
            with contextlib.suppress(psutil.Error):
                process.kill()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)
        if reason == "asked":  # its socket stays readable for ever
            with contextlib.suppress(KeyError):
                self.selector.unregister(worker.status)

    def _reap(self) -> None:
        while True:
            try:
                pid, code = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            worker = self.workers.pop(pid, None)
            if worker is None:
                continue  # what some worker had left behind
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            self._kill_strays()
            ended = {"exit": os.waitstatus_to_exitcode(code), "killed_for": worker.killed_for}
            with contextlib.suppress(OSError):
                worker.status.sendall(json.dumps(ended).encode())
            with contextlib.suppress(KeyError):
                self.selector.unregister(worker.status)
            worker.status.close()
            shutil.rmtree(worker.folder, ignore_errors=True)

    def _watch(self) -> None:
        self._kill_strays()
        for worker in list(self.workers.values()):
            if worker.deadline is not None and time.monotonic() > worker.deadline:
                self._kill(worker, "time")
            used = 0
            for process in _tree(worker.pid):
                with contextlib.suppress(psutil.Error):
                    used += process.memory_info().rss
            if used > worker.memory_limit_bytes:
                self._kill(worker, "memory")

    def _kill_strays(self) -> None:
        """Kill processes that came here because their parent ended, and see them gone.

        Each may leave children in its turn. One that the kernel does not let die is not waited for.
        """
        deadline = time.monotonic() + _MOST_WAIT_S
        while strays := [p for p in psutil.Process().children() if p.pid not in self.workers]:
            for process in strays:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(strays, timeout=max(0.0, deadline - time.monotonic()))
            if time.monotonic() > deadline:
                return

    def _end(self) -> None:
        """Kill all that is left, until nothing is."""
        for worker in self.workers.values():
            self._kill(worker, "the judge is gone")
            shutil.rmtree(worker.folder, ignore_errors=True)
        self.workers.clear()
        while psutil.Process().children():
            self._kill_strays()


def _tree(pid: int) -> list[psutil.Process]:
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.Error:
        return []


def _become_worker(request: dict[str, Any], channel: int, output: int, status: int) -> NoReturn:
    """In the fork: a process with nothing of the supervisor's but what it has imported."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # where memory runs out, the kernel takes this process first
        null = os.open(os.devnull, os.O_RDONLY)
        # The descriptors that came are above 3: the supervisor's own are below.
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(channel, 3)
        os.closerange(4, 1 << 20)
        os.chdir(request["cwd"] or request["folder"])

        if request["argv"]:
            environment = request["environment"]
            own = os.environ if environment is None else environment
            os.execvpe(request["argv"][0], request["argv"], own)
        from kernelbench_dist.harness import _worker

        code = _worker.main(request, socket.socket(fileno=3))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    # Ctrl-C at a terminal goes to the judge, which closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    from kernelbench_dist.harness import _worker  # noqa: F401 (imported for the forks)

    _Supervisor(control).serve()


if __name__ == "__main__":
    main()
