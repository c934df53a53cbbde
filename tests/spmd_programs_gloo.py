"""Processes that run programs as the ranks of gloo groups, one group a program."""

from __future__ import annotations

import contextlib
import pickle
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

TIMEOUT = 60.0


def _serve(rank: int, pipe: Connection) -> None:
    torch.set_num_threads(1)
    # A group whose last reference falls in its own thread, as in a future's callback, makes the
    # process abort. So each lives as long as the process.
    kept: list[Any] = []
    while True:
        task = pipe.recv()
        if task is None:
            return
        function, arguments, world_size, port, call = task
        try:
            store = dist.TCPStore("127.0.0.1", port, is_master=False)
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore(str(call), store),
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=TIMEOUT / 2),
            )
            torch.manual_seed(1234)
            answer = True, function(**arguments)
        except Exception:
            answer = False, traceback.format_exc()
        finally:
            if dist.is_initialized():
                kept.extend(dist.distributed_c10d._world.pg_map)
                dist.destroy_process_group()
        # Bytes by pickle: a tensor sent as it is would be a handle to this process's memory.
        pipe.send_bytes(pickle.dumps(answer))


class GlooRanks:
    """`run` gives the results in rank order; a failure of any rank raises RuntimeError."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._calls = 0
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []

    def __enter__(self) -> GlooRanks:
        context = multiprocessing.get_context("spawn")
        for rank in range(self.size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, there), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            with contextlib.suppress(OSError):  # it is gone
                pipe.send(None)
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()
        self._pipes, self._processes = [], []

    def run(
        self,
        function: Callable[..., Any],
        arguments: dict[str, Any] | None = None,
        world_size: int | None = None,
    ) -> list[Any]:
        if not self._pipes:
            self.__enter__()
        self._calls += 1
        pipes = self._pipes[: world_size or self.size]
        for pipe in pipes:
            pipe.send((function, arguments or {}, len(pipes), self._store.port, self._calls))
        deadline = time.monotonic() + TIMEOUT
        answers = []
        for rank, pipe in enumerate(pipes):
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                self._stop()
                raise RuntimeError(f"rank {rank} did not answer within {TIMEOUT:g} s")
            try:
                answers.append(pickle.loads(pipe.recv_bytes()))
            except (EOFError, OSError):
                self._stop()
                raise RuntimeError(f"the process of rank {rank} died") from None
        for rank, (well, what) in enumerate(answers):
            if not well:
                raise RuntimeError(f"rank {rank}: {what}")
        return [what for _, what in answers]
