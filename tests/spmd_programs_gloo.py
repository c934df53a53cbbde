"""Processes that run programs as the ranks of gloo groups, one group a program."""

from __future__ import annotations

import contextlib
import pickle
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

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
            # DTensor's cache outlives the groups. A mesh like an earlier program's gives results
            # on that one's groups, whose names may now be those of others.
            _clear_sharding_prop_cache()
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
        answers = self._answers(pipes)
        failures = [f"rank {rank}: {what}" for rank, (well, what) in answers.items() if not well]
        if len(answers) < len(pipes):
            self._stop()
            missing = sorted(set(range(len(pipes))) - set(answers))
            failures.append(f"no answer from ranks {missing}")
        if failures:
            raise RuntimeError("\n".join(failures))
        return [answers[rank][1] for rank in range(len(pipes))]

    def _answers(self, pipes: list[Connection]) -> dict[int, tuple[bool, Any]]:
        """By rank; without the ranks that died, or wait for one that failed or died."""
        answers: dict[int, tuple[bool, Any]] = {}
        deadline = time.monotonic() + TIMEOUT
        waiting = list(pipes)
        while waiting and (ready := wait(waiting, max(0.0, deadline - time.monotonic()))):
            for pipe in waiting[:]:
                if pipe not in ready:
                    continue
                waiting.remove(pipe)
                with contextlib.suppress(EOFError, OSError):
                    answers[pipes.index(pipe)] = pickle.loads(pipe.recv_bytes())
                if not answers.get(pipes.index(pipe), (False,))[0]:
                    deadline = min(deadline, time.monotonic() + 3)
        return answers
