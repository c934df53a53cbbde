"""The jobs of a sweep as tasks of Ray, on all machines of its cluster."""

from __future__ import annotations

import importlib
import os
from typing import Any

from kernelbench_dist.harness.sweep import _judge
from kernelbench_dist.harness.sweep._plan import Job
from kernelbench_dist.harness.sweep._pool import Finished, LocalPool

_local: dict[str, LocalPool] = {}


def judge_here(job: Job, limit_s: float) -> dict[str, Any]:
    """One job, in a judge's process that this worker of Ray keeps for the next one."""
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if gpus not in _local:  # Ray may give this worker another GPU than before
        for pool in _local.values():
            pool.close()
        _local.clear()
        _local[gpus] = LocalPool(1, limit_s, {})
    pool = _local[gpus]
    pool.submit(job)
    while not (done := pool.finished()):
        pass
    return done[0][1]


class RayPool:
    """A task takes one CPU slot, and one GPU where that is what is judged on.

    slots: the most tasks at once; None leaves it to Ray.

    Raises RuntimeError where there is no Ray, or no GPU in its cluster though one is needed.
    """

    def __init__(self, slots: int | None, limit_s: float, *, on_gpu: bool) -> None:
        try:
            ray = importlib.import_module("ray")
        except ImportError as error:
            raise RuntimeError(
                "executor='ray' needs Ray: pip install 'kernelbench-dist[ray]'"
            ) from error
        self._ray = ray
        self._slots = slots
        self._limit_s = limit_s
        self._started_here = not ray.is_initialized()
        if self._started_here:
            ray.init(log_to_driver=False)
        self._tasks: dict[Any, Job] = {}
        try:
            if on_gpu and ray.cluster_resources().get("GPU", 0) < 1:
                raise RuntimeError(
                    "the Ray cluster has no GPU: start one that has, or judge on 'cpu'"
                )
        except BaseException:
            self.close()
            raise
        # What a failure is and whether to try again is decided where the log is.
        options = {"num_cpus": 1, "num_gpus": int(on_gpu), "max_retries": 0}
        self._judge = ray.remote(**options)(judge_here)

    def has_room(self) -> bool:
        return self._slots is None or len(self._tasks) < self._slots

    def is_busy(self) -> bool:
        return bool(self._tasks)

    def submit(self, job: Job) -> None:
        self._tasks[self._judge.remote(job, self._limit_s)] = job

    def finished(self) -> Finished:
        ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=1.0)
        return [self._answer(task) for task in ready]

    def _answer(self, task: Any) -> tuple[Job, dict[str, Any]]:
        job = self._tasks.pop(task)
        try:
            return job, self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            said = (str(error).strip().splitlines() or [""])[0]
            reason = f"Ray lost the task ({type(error).__name__}): {said}"
            return job, _judge.no_verdict(job, reason, str(error)[-4000:])

    def close(self) -> None:
        for task in self._tasks:
            self._ray.cancel(task, force=True)
        self._tasks.clear()
        if self._started_here:
            self._ray.shutdown()
