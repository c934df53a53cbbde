"""A program on R real processes: started for the one call, or those that are there already."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

import torch
import torch.distributed as dist

from kernelbench_dist.distributed_collectives._real_join import join, meet
from kernelbench_dist.distributed_collectives._real_messages import Failure, result_of
from kernelbench_dist.distributed_collectives.device import (
    default_device,
    get_world_size,
    is_distributed_run,
    maybe_init_process_group,
)

_HOST = "127.0.0.1"
_SET_PDEATHSIG = 1
_EXIT_S = 10.0  # for a rank to exit once its result is here
_LEAVE_S = 2.0  # for the other ranks to return too before one leaves
_PEER_S = 1.0  # for the rank that others have lost to be found dead


def run_real(
    fn: Callable[..., Any],
    world_size: int,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    backend: str,
    device: torch.device | None,
) -> list[Any]:
    """`fn(*args, **kwargs)` on each of `world_size` processes; the results, on the CPU.

    A process that is a rank already (of torchrun, or of an initialised group) runs `fn` itself,
    as all others of its group do. Tensors come back detached.

    Args:
        backend: "gloo", or "nccl" with rank r on cuda:r.
        device: the kind of device that `default_device()` names in a rank: cpu, or cuda for
            cuda:r on rank r. None leaves it to what is there.
    """
    if is_distributed_run():
        if (there := get_world_size()) != world_size:
            raise ValueError(
                f"run_spmd: world_size is {world_size}, but this process is one of {there} that "
                f"run already (torchrun's WORLD_SIZE, or the group's size): {there} is accepted"
            )
        _check_device_there(backend, device)
        return join(functools.partial(fn, *args, **kwargs), world_size, backend)
    _check_device(backend, device, world_size)
    return _start(_pickled(fn, args, kwargs), world_size, backend, device)


def _check_device(backend: str, device: torch.device | None, world_size: int) -> None:
    accepted = ("cuda",) if backend == "nccl" else ("cpu", "cuda")
    if device is not None and str(device) not in accepted:
        raise ValueError(
            f"run_spmd: device is {str(device)!r}; with backend {backend!r} "
            f"{' or '.join(accepted)} is accepted, where cuda is cuda:r on rank r"
        )
    if backend == "nccl" or (device is not None and device.type == "cuda"):
        count = torch.cuda.device_count()
        if count < world_size:
            raise ValueError(
                f"run_spmd: {world_size} ranks need {world_size} GPUs, one each, and torch sees "
                f"{count} here. backend='virtual' runs them all on one device"
            )


def _check_device_there(backend: str, device: torch.device | None) -> None:
    if backend == "nccl" and not torch.cuda.is_available() and not dist.is_initialized():
        raise ValueError("run_spmd: backend 'nccl' needs GPUs, and torch sees none here")
    if device is None:
        return
    there = default_device()
    if device.type != there.type or device.index not in (None, there.index):
        raise ValueError(
            f"run_spmd: device is {str(device)!r}, but default_device() is {str(there)!r} in this "
            "process, which runs already: leave device out"
        )


def _pickled(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    inner = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    if getattr(inner, "__module__", None) == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        if file is None or not os.path.isfile(file):
            raise TypeError(
                f"run_spmd: fn is {fn!r}, of a __main__ that has no file (a notebook, a prompt, "
                "python -c). Real processes import the function by its name: put it in a module"
            )
    for name, value in (("fn", fn), ("args", tuple(args)), ("kwargs", dict(kwargs))):
        try:
            pickle.dumps(value)
        except Exception as error:  # PicklingError, TypeError, AttributeError: all are in use
            raise TypeError(
                f"run_spmd: {name} is {value!r}, which cannot be pickled: {error}. Real processes "
                "get the function by its name and the arguments as copies: define the function "
                "(no lambda, no function in a function) and its arguments' classes at the top "
                "level of a module, and hand what it needs in args"
            ) from error
    return pickle.dumps((fn, tuple(args), dict(kwargs)))


@dataclass(frozen=True)
class _Task:
    rank: int
    world_size: int
    program: bytes
    environment: dict[str, str]
    threads: int
    backend: str
    parent: int


def _start(program: bytes, world_size: int, backend: str, device: torch.device | None) -> list[Any]:
    # The server of the store is this process, as it is torchrun's agent there: the port is taken
    # once and for all, and no rank's end takes the store with it.
    store = dist.TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
    threads = max(1, torch.get_num_threads() // world_size)
    ranks: list[_Rank] = []
    try:
        for r in range(world_size):
            environment = _environment(r, world_size, store.port, threads)
            if device is not None and device.type == "cpu":
                environment["CUDA_VISIBLE_DEVICES"] = ""
            task = _Task(r, world_size, program, environment, threads, backend, os.getpid())
            ranks.append(_Rank(task))
        payloads = _collect(ranks)
        for rank in ranks:
            rank.process.join(_EXIT_S)
    finally:
        for rank in ranks:
            rank.end()
    return [pickle.loads(payload) for payload in payloads]


def _environment(rank: int, world_size: int, port: int, threads: int) -> dict[str, str]:
    """As torchrun sets it on one node."""
    r, size = str(rank), str(world_size)
    return {
        "RANK": r,
        "LOCAL_RANK": r,
        "ROLE_RANK": r,
        "GROUP_RANK": "0",
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "ROLE_WORLD_SIZE": size,
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": _HOST,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "run_spmd",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "OMP_NUM_THREADS": str(threads),
    }


class _Rank:
    """One process, seen from the one that started it."""

    def __init__(self, task: _Task) -> None:
        context = multiprocessing.get_context("spawn")
        self.index = task.rank
        self.started = False
        self.payload: bytes | None = None
        self.failure: Failure | None = None
        self.receiver, sender = context.Pipe(duplex=False)
        self.process = context.Process(
            target=_rank_main, args=(sender, task), name=f"rank {task.rank}"
        )
        self.process.start()
        sender.close()  # so that the end of the rank is the end of the pipe

    @property
    def done(self) -> bool:
        return self.payload is not None or self.failure is not None

    def read(self) -> None:
        """Take in what the rank has sent, and whether it has died."""
        dead = not self.process.is_alive()  # asked first: all that it sent is then in the pipe
        try:
            while not self.done and self.receiver.poll():
                kind, content = self.receiver.recv()
                self.started = True
                if kind == "result":
                    self.payload = self.receiver.recv_bytes()
                elif kind == "failed":
                    self.failure = content
        except (EOFError, OSError):
            dead = True
            self.process.join(_EXIT_S)
        if dead and not self.done:
            self.failure = Failure(self.index, self._death(), time.monotonic())

    def _death(self) -> str:
        code = self.process.exitcode
        if code is None:
            return "the process has closed its connection to the one that started it"
        if code < 0:
            try:
                return f"the process was killed by {signal.Signals(-code).name}"
            except ValueError:
                return f"the process was killed by signal {-code}"
        said = f"the process ended with exit code {code} before its program did"
        if not self.started:
            said = (
                f"the process ended with exit code {code} before its program began. It imports "
                "the main script first: what runs there, as this call, belongs under "
                "`if __name__ == '__main__':`"
            )
        return said

    def end(self) -> None:
        """With all that it has started itself, which is in its process group."""
        assert self.process.pid
        self.process.kill()  # it may not have got as far as a group of its own
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        self.receiver.close()


def _collect(ranks: Sequence[_Rank]) -> list[bytes]:
    while waiting := [rank for rank in ranks if not rank.done]:
        _read(waiting, timeout=0.5)
        if any(rank.failure for rank in ranks):
            raise _first_failure(ranks).exception(len(ranks))
    return [rank.payload for rank in ranks if rank.payload is not None]


def _read(ranks: Sequence[_Rank], timeout: float) -> None:
    # Not without a timeout: a process that the rank has forked may hold both of these open.
    connection.wait([x for rank in ranks for x in (rank.receiver, rank.process.sentinel)], timeout)
    for rank in ranks:
        rank.read()


def _first_failure(ranks: Sequence[_Rank]) -> Failure:
    """The system closes a dying process's connections before it says that the process is dead:
    where all that is known is that peers are lost, the cause is still to come."""
    deadline = time.monotonic() + _PEER_S
    while True:
        failures = [rank.failure for rank in ranks if rank.failure is not None]
        waiting = [rank for rank in ranks if not rank.done]
        late = time.monotonic() > deadline
        if not waiting or late or not all(failure.lost_peer for failure in failures):
            return min(failures, key=lambda failure: (failure.lost_peer, failure.when))
        _read(waiting, timeout=0.05)


def _rank_main(sender: connection.Connection, task: _Task) -> None:
    """In the process of the rank."""
    os.setpgid(0, 0)  # Ctrl-C is for the process that waits: it ends this one
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != task.parent:
        os._exit(1)
    os.environ.update(task.environment)
    torch.set_num_threads(task.threads)
    sender.send(("started", None))
    try:
        fn, args, kwargs = pickle.loads(task.program)
        maybe_init_process_group(task.backend)
        store = dist.PrefixStore("run_spmd", dist.distributed_c10d._get_default_store())
        # A rank that leaves while another still connects to it would break that one.
        meet(store, "initialised", task.world_size)
        payload = result_of(functools.partial(fn, *args, **kwargs))
        # The same holds for a group that was made last. A rank that waits for this one, which has
        # returned too early, is to get its error all the same.
        with contextlib.suppress(dist.DistStoreError):
            meet(store, "returned", task.world_size, timeout_s=_LEAVE_S)
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException as error:
        _flush()
        sender.send(("failed", Failure.of(task.rank, error)))
        # Leaving would break the others' connections, and they would report that.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            signal.pause()
    _flush()
    sender.send(("result", None))
    sender.send_bytes(payload)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
