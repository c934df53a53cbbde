"""A program on the processes that are there: torchrun's, or those of an initialised group."""

from __future__ import annotations

import datetime
import functools
import gc
import itertools
import pickle
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from kernelbench_dist.distributed_collectives._current import current_rank
from kernelbench_dist.distributed_collectives._real_messages import Failure, result_of
from kernelbench_dist.distributed_collectives.device import (
    default_device,
    get_rank,
    get_world_size,
)

_TELL_S = 3.0  # for the other processes to hear of a failure before this one leaves
_FAILED = b"failed"
_calls = itertools.count()  # of run_spmd in a group that is there: the same on each of its ranks


def join(program: Callable[[], Any], world_size: int, backend: str) -> list[Any]:
    mine = not dist.is_initialized()
    if current_rank() is not None:  # a virtual rank: its run sees to failures
        if mine:
            dist.init_process_group(backend)
        return _gather(result_of(program), world_size)

    call = next(_calls)
    if mine:
        # A prefix of its own: a group that finds the keys of an earlier one may not come up.
        _initialise(backend, dist.PrefixStore(f"run_spmd/{call}/group", _environment_store()))
    store = dist.PrefixStore(f"run_spmd/{call}", dist.distributed_c10d._get_default_store())
    failure: Failure | None
    original: BaseException | None = None
    try:
        payload = result_of(program)
    except BaseException as error:
        original = error
        failure = _tell(store, Failure.of(dist.get_rank(), error))
    else:
        failure = meet(store, "finished", world_size)
        if failure is None:
            results = _gather(payload, world_size)
            meet(store, "gathered", world_size)  # who left now could break a connection in use
    rank = dist.get_rank()
    if mine:
        if original is not None:
            traceback.clear_frames(original.__traceback__)
        dist.destroy_process_group()
        # Others may wait for this rank in a collective. They are free once its connections close,
        # and that is when nothing refers to the group any more.
        gc.collect()
    if failure is None:
        return results
    _wait_until_told(store, world_size)
    if isinstance(original, KeyboardInterrupt):
        raise original
    raise failure.exception(world_size, original if failure.rank == rank else None)


@functools.cache  # on rank 0 it may be the server, which has to stay
def _environment_store() -> dist.Store:
    return next(dist.rendezvous("env://"))[0]


def _initialise(backend: str, store: dist.Store) -> None:
    device_id = None
    if backend == "nccl":
        device_id = default_device()
        torch.cuda.set_device(device_id)
    dist.init_process_group(
        backend,
        store=store,
        rank=get_rank(),
        world_size=get_world_size(),
        device_id=device_id,
    )


def _gather(payload: bytes, world_size: int) -> list[Any]:
    # Results are on the CPU: with NCCL they would go through the GPU's memory.
    on_cpu = current_rank() is not None or dist.get_backend() == "gloo"
    group = None if on_cpu else dist.new_group(backend="gloo")
    payloads: list[Any] = [None] * world_size
    dist.all_gather_object(payloads, payload, group=group)
    if group is not None:
        dist.destroy_process_group(group)
    return [pickle.loads(p) for p in payloads]


# By the store, since ranks that wait in a collective are deaf to any other


def meet(
    store: dist.Store, place: str, world_size: int, timeout_s: float = 365 * 24 * 3600
) -> Failure | None:
    """Wait for all ranks to get here, or for the first failure that a rank tells of."""
    if store.add(place, 1) == world_size:
        store.set(f"end of {place}", "all are here")
    store.wait([f"end of {place}"], datetime.timedelta(seconds=timeout_s))
    if store.get(f"end of {place}") == _FAILED:
        return pickle.loads(store.get("failure"))
    return None


def _tell(store: dist.Store, failure: Failure) -> Failure:
    """Tell the other ranks of a failure. The result is what the first to fail has told."""
    try:
        if store.add("failures", 1) == 1:
            store.set("failure", pickle.dumps(failure))  # type: ignore[arg-type] # bytes are fine
            store.set("end of finished", _FAILED)  # type: ignore[arg-type]
        return pickle.loads(store.get("failure"))
    except RuntimeError:  # the process that has the store is gone
        return failure


def _wait_until_told(store: dist.Store, world_size: int) -> None:
    deadline = time.monotonic() + _TELL_S
    try:
        told = store.add("told", 1)
        while told < world_size and time.monotonic() < deadline:
            time.sleep(0.02)
            told = store.add("told", 0)
    except RuntimeError:  # as above
        pass
