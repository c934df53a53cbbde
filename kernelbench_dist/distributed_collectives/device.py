"""Where this process stands: its device, its rank, and the process group it belongs to.

The answers come from the process group once one is initialised (a virtual rank has one of its own),
before that from the environment variables that torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK), and
without either they are those of a lone process: rank 0 of 1.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from kernelbench_dist.distributed_collectives._current import current_rank

__all__ = [
    "default_device",
    "get_rank",
    "get_world_size",
    "is_distributed_run",
    "maybe_init_process_group",
]


def default_device() -> torch.device:
    """The device that this process should compute on.

    In a virtual rank: the device of the run. Under torchrun (RANK, WORLD_SIZE and LOCAL_RANK are
    set) with CUDA: ``cuda:LOCAL_RANK``. Otherwise with CUDA: the current CUDA device. Without
    CUDA: ``cpu``.

    Returns:
        A device with its index, such as ``cuda:0``, or ``cpu``.

    Raises:
        ValueError: under torchrun, if LOCAL_RANK is not an integer from 0 up (on a CPU too), or is
            not the number of a visible CUDA device.

    >>> default_device().type in ("cpu", "cuda")
    True
    """
    if (rank := current_rank()) is not None:
        return rank.run.device
    local_rank = _local_rank()
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank is None:
        return torch.device("cuda", torch.cuda.current_device())
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ValueError(
            f"LOCAL_RANK={local_rank} names no visible CUDA device: {count} visible "
            f"(0 to {count - 1}). Start at most {count} processes a node, or look at "
            "CUDA_VISIBLE_DEVICES"
        )
    return torch.device("cuda", local_rank)


def is_distributed_run() -> bool:
    """Whether this process is a rank: it has a process group, or torchrun's environment.

    A run of a single rank counts too: with a group initialised its collectives work.

    >>> is_distributed_run() == (get_world_size() > 1)  # in a lone process both are False
    True
    """
    return _group_is_initialised() or _has_rank_in_env()


def maybe_init_process_group(backend: str | None = None) -> bool:
    """Initialise torch.distributed from torchrun's environment, if that is still to be done.

    Does nothing where a group is already initialised, and nothing outside torchrun. With an NCCL
    backend and LOCAL_RANK the group is bound to ``cuda:LOCAL_RANK``, and that becomes the current
    CUDA device, which NCCL's object collectives use.

    Args:
        backend: a torch.distributed backend's name. By default "nccl" where CUDA and NCCL are
            available, else "gloo".

    Returns:
        Whether a process group is initialised now.

    Raises:
        ValueError: if RANK, WORLD_SIZE or LOCAL_RANK is not a number that fits the others.
        RuntimeError: under torchrun with a torch that is built without torch.distributed.

    >>> maybe_init_process_group()  # not under torchrun
    False
    """
    if _group_is_initialised():
        return True
    if not _has_rank_in_env():
        return False
    if not dist.is_available():
        raise RuntimeError(
            "RANK and WORLD_SIZE are set, but this torch is built without torch.distributed: "
            "install one that has it, or unset both to run as a lone process"
        )
    get_rank()  # a bad RANK or WORLD_SIZE is named here rather than deep inside the rendezvous
    if backend is None:
        has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
        backend = "nccl" if has_nccl else "gloo"
    device_id = None
    if "nccl" in backend and torch.cuda.is_available() and _local_rank() is not None:
        device_id = default_device()
        torch.cuda.set_device(device_id)
    dist.init_process_group(backend, device_id=device_id)
    return True


def get_rank() -> int:
    """This process's rank: of the initialised group, else torchrun's RANK, else 0.

    Raises:
        ValueError: if RANK is taken from the environment and is not in 0 to WORLD_SIZE - 1.

    >>> get_rank()
    0
    """
    if _group_is_initialised():
        return dist.get_rank()
    if not _has_rank_in_env():
        return 0
    rank, world_size = _env_int("RANK", 0), _env_int("WORLD_SIZE", 1)
    if rank >= world_size:
        raise ValueError(f"RANK={rank} is not in 0 to {world_size - 1}: WORLD_SIZE={world_size}")
    return rank


def get_world_size() -> int:
    """The number of ranks: of the initialised group, else torchrun's WORLD_SIZE, else 1.

    Raises:
        ValueError: if WORLD_SIZE is taken from the environment and is not an integer from 1 up.

    >>> get_world_size()
    1
    """
    if _group_is_initialised():
        return dist.get_world_size()
    return _env_int("WORLD_SIZE", 1) if _has_rank_in_env() else 1


def _group_is_initialised() -> bool:
    # A torch without torch.distributed still has the module, but not is_initialized.
    return dist.is_available() and dist.is_initialized()


def _has_rank_in_env() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _local_rank() -> int | None:
    """torchrun's LOCAL_RANK, or None where torchrun did not start this process."""
    if not _has_rank_in_env() or "LOCAL_RANK" not in os.environ:
        return None
    return _env_int("LOCAL_RANK", 0)


def _env_int(name: str, lowest: int) -> int:
    text = os.environ[name]
    try:
        value = int(text)
    except ValueError:
        value = lowest - 1
    if value < lowest:
        raise ValueError(f"{name}={text!r} in the environment must be an integer, {lowest} or more")
    return value
