"""Gloo ranks kept for the whole run: processes that call a test's function as the ranks of a group.

A process that imports torch takes seconds, so one is started, the nursery, which imports torch and
forks the ranks; ranks that hang or die are replaced by another fork. Each call has a gloo group of
its own, on a prefix of a TCPStore that rank 0 keeps.

The nursery ends when the socket from pytest closes, however pytest ended, and the kernel ends the
ranks with the nursery.

This file is also the nursery's program.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.util
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

SIZE = 8
LIMIT = 20.0

# A rank that is through keeps its group until all are, so that none misses what it has sent; but no
# longer than this when the others stand still, as they may wait for it.
_GRACE = 0.5

_START = b"start"
_CLOSE = b"close"
_CLOSE_NOW = b"close now"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Raised:
    """What a rank raised, or "ProcessDied" as the type if its process ended."""

    type: str
    message: str
    trace: str = ""


class GlooHangError(Exception):
    """Ranks that had not returned when the time was up; .outcomes has None for those."""

    def __init__(self, message: str, outcomes: list[Any]) -> None:
        super().__init__(message)
        self.outcomes = outcomes


class GlooPool:
    """Up to SIZE ranks; nothing is started before the first call."""

    def __init__(self) -> None:
        self._nursery: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket | None = None
        self._ranks: list[Connection] = []
        self._port = 0
        self._calls = 0

    def run(
        self, fn: Callable[..., Any], world_size: int, *args: Any, limit: float = LIMIT
    ) -> list[Any]:
        """fn(*args) on each rank of a new default group: a list of the results, in rank order.

        Where a rank raised, the list has a Raised. fn is a function of a module, and it, args and
        results are pickled. Each rank's torch random state is that of torch.manual_seed(0).
        limit: in seconds; then GlooHangError, and the ranks are started anew.
        """
        if not 1 <= world_size <= SIZE:
            raise ValueError(f"world_size is {world_size}; 1 to {SIZE} is accepted")
        if "<" in fn.__qualname__:
            raise ValueError(f"{fn.__qualname__} is no function of a module, which is needed")
        # One that has something to say between two calls has ended.
        if not self._ranks or wait(self._ranks, 0):
            self._restart()
        self._calls += 1
        file = str(Path(fn.__code__.co_filename).resolve())
        place = (self._calls, self._port, world_size, limit)
        task = pickle.dumps((place, fn.__module__, file, fn.__qualname__, pickle.dumps(args)))
        ranks = self._ranks[:world_size]
        for rank in ranks:
            with contextlib.suppress(OSError):  # It has died; _collect sees that.
                rank.send_bytes(task)
        outcomes = self._collect(ranks, limit)
        missing = [r for r, outcome in enumerate(outcomes) if outcome is None]
        if missing or any(o == _DIED for (o,) in filter(None, outcomes)):
            self._restart()
        values = [outcome and outcome[0] for outcome in outcomes]
        if missing:
            raise GlooHangError(
                f"ranks {missing} of {world_size} had not returned from {fn.__qualname__} after "
                f"{limit:g} s; the others: {values}",
                values,
            )
        return values

    def values(
        self, fn: Callable[..., Any], world_size: int, *args: Any, limit: float = LIMIT
    ) -> list[Any]:
        """As run, for a call in which no rank raises; else AssertionError with the traceback."""
        outcomes = self.run(fn, world_size, *args, limit=limit)
        for r, outcome in enumerate(outcomes):
            if isinstance(outcome, Raised):
                raise AssertionError(f"rank {r}: {outcome.message}\n{outcome.trace}")
        return outcomes

    def close(self) -> None:
        if self._orders is not None and self._nursery is not None:
            for rank in self._ranks:
                rank.close()
            self._orders.close()
            self._nursery.wait(10)
        self._nursery, self._orders, self._ranks = None, None, []

    def _collect(self, ranks: list[Connection], limit: float) -> list[tuple[Any] | None]:
        """A tuple with the outcome for each rank, None where there was none in time."""
        outcomes: list[tuple[Any] | None] = [None] * len(ranks)
        pending = dict(zip(ranks, range(len(ranks)), strict=True))
        open_: list[Connection] = []
        end = time.monotonic() + limit
        while pending and (left := end - time.monotonic()) > 0:
            ready = wait(pending, min(left, _GRACE))
            for rank in ready:
                assert isinstance(rank, Connection)
                r = pending.pop(rank)
                try:
                    outcomes[r] = (pickle.loads(rank.recv_bytes()),)
                    open_.append(rank)
                except (EOFError, OSError):
                    outcomes[r] = (_DIED,)
            if not ready or not pending:
                for rank in open_:
                    with contextlib.suppress(OSError):
                        rank.send_bytes(_CLOSE_NOW if pending else _CLOSE)
                open_ = []
        return outcomes

    def _restart(self) -> None:
        for rank in self._ranks:
            rank.close()
        if self._orders is None:
            self._orders, theirs = socket.socketpair()
            # In a session of its own: Ctrl-C is for pytest alone, which then closes the socket.
            self._nursery = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            theirs.close()
        pairs = [socket.socketpair() for _ in range(SIZE)]
        socket.send_fds(self._orders, [_START], [theirs.fileno() for _, theirs in pairs])
        for _, theirs in pairs:
            theirs.close()
        self._ranks = [Connection(ours.detach()) for ours, _ in pairs]
        self._port = int(self._ranks[0].recv_bytes())


_DIED = Raised("ProcessDied", "the process of the rank ended")

# One thread each, and no look-up of the host's name.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}


@functools.cache
def pool() -> GlooPool:
    """The pool of this process. It ends with the process."""
    one = GlooPool()
    atexit.register(one.close)
    return one


# What follows runs in the nursery and in the ranks.


def _nurse(orders: socket.socket) -> None:
    """Forks the ranks, again at each further order, until the socket closes."""
    # What the ranks would each import.
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import torch
    import torch.distributed.nn.functional
    import torch.distributed.tensor.debug

    import kernelbench_dist.distributed_collectives  # noqa: F401

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # To write a core takes seconds.
    gc.freeze()
    children: list[int] = []
    while True:
        message, fds, _, _ = socket.recv_fds(orders, len(_START), SIZE)
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
        if not message:
            return
        children = []
        for r, fd in enumerate(fds):
            child = os.fork()
            if child == 0:
                orders.close()
                for other in fds[:r] + fds[r + 1 :]:
                    os.close(other)
                _die_with_parent()
                _serve(r, Connection(fd))
            children.append(child)
        for fd in fds:
            os.close(fd)


def _die_with_parent() -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It died before the kernel knew.
        os._exit(1)


def _serve(r: int, pytest: Connection) -> None:
    import torch.distributed as dist

    store = None
    if r == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        pytest.send_bytes(str(store.port).encode())
    try:
        while True:
            task = pytest.recv_bytes()
            if task in (_CLOSE, _CLOSE_NOW):  # One that raised has left already.
                continue
            place, *what = pickle.loads(task)
            if store is None:
                store = dist.TCPStore("127.0.0.1", place[1], wait_for_workers=False)
            outcome = _call(r, store, place, what)
            raised = isinstance(outcome, Raised)
            if raised:
                _leave(at_once=True)
            pytest.send_bytes(_pickled(outcome))
            if not raised:
                del outcome
                _leave(at_once=pytest.recv_bytes() == _CLOSE_NOW)
    except EOFError:
        os._exit(0)
    except BaseException:
        os._exit(1)


def _call(r: int, store: Any, place: tuple[int, int, int, float], what: list[Any]) -> Any:
    import torch
    import torch.distributed as dist

    call, _, world_size, limit = place
    try:
        # Before there is a group: a module may keep the one that it finds when it is imported, as
        # torch.distributed.nn.functional does, and then its connections never close.
        module, file, qualname, pickled = what
        fn: Any = _load(module, file)
        for name in qualname.split("."):
            fn = getattr(fn, name)
        args = pickle.loads(pickled)
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(str(call), store),
            rank=r,
            world_size=world_size,
            # Longer than pytest waits: a hang is a hang, and not an error of gloo's.
            timeout=timedelta(seconds=2 * limit),
        )
        torch.manual_seed(0)
        return fn(*args)
    except BaseException as error:
        return Raised(type(error).__name__, str(error), traceback.format_exc())


def _pickled(outcome: Any) -> bytes:
    try:
        return pickle.dumps(outcome)
    except Exception as error:
        return pickle.dumps(Raised(type(error).__name__, str(error), traceback.format_exc()))


def _leave(*, at_once: bool) -> None:
    """Ends all groups; at_once lets the peers see it."""
    import torch.distributed as dist
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    _kept.append(list(dist.distributed_c10d._world.pg_map))
    if dist.is_initialized():  # fn may have ended them itself.
        dist.destroy_process_group()
    # It outlives the groups, and a mesh like an earlier one would be answered with that one's.
    _clear_sharding_prop_cache()
    if at_once:
        gc.collect()  # What the exception held, in cycles too.
    # The connections close with the last reference, and that takes 10 ms, in which a thread of
    # gloo's sleeps. One call late: a process aborts if one of gloo's own threads, which may be
    # about to end a callback, has the last reference.
    while len(_kept) > (0 if at_once else 1):
        threading.Thread(target=_kept.pop(0).clear).start()


_kept: list[list[Any]] = []


def _load(name: str, file: str) -> types.ModuleType:
    """The module of that name if it comes from the file, else the file, under that name."""
    loaded = sys.modules.get(name)
    if loaded is None:
        with contextlib.suppress(ImportError):
            spec = importlib.util.find_spec(name)
            if spec and spec.origin and Path(spec.origin).resolve() == Path(file):
                return importlib.import_module(name)
    elif getattr(loaded, "__file__", None) and Path(loaded.__file__ or "").resolve() == Path(file):
        return loaded
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Before it runs: dataclasses look there, and so does pickle.
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    # Under its name, so that pickle finds the Raised that pytest knows.
    import gloo_pool

    gloo_pool._nurse(socket.socket(fileno=int(sys.argv[1])))
else:
    import pytest

    @pytest.fixture(scope="session", name="gloo_pool")
    def gloo_pool_fixture() -> GlooPool:
        """The gloo ranks of this run."""
        return pool()
