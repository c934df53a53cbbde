"""One function on R ranks: virtual ones on one device, or real processes.

Inside the function torch.distributed is initialised, and code that knows nothing of this package
runs as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist

from kernelbench_dist.distributed_collectives.virtual import Faults

__all__ = ["SpmdOptions", "run_spmd"]

_BACKENDS = ("virtual", "gloo", "nccl")


@dataclass(frozen=True)
class SpmdOptions:
    """How virtual ranks run.

    order: of the terms of a sum. "rank": from rank 0 up, as the stacked collectives have it.
        "gloo_ring": as gloo has it, bit for bit.
    mode: "strict" refuses what real backends take and get wrong without a word. "portable" also
        refuses what only virtual ranks take.
    faults: what is done to the ranks on purpose.
    watchdog_s: how long a rank may do nothing at all before it is taken to wait for something that
        never comes.

    >>> SpmdOptions(order="gloo_ring").mode
    'strict'
    """

    order: Literal["rank", "gloo_ring"] = "rank"
    mode: Literal["strict", "portable"] = "strict"
    faults: Faults | None = None
    watchdog_s: float = 60.0

    def __post_init__(self) -> None:
        for name, accepted in (("order", ("rank", "gloo_ring")), ("mode", ("strict", "portable"))):
            if getattr(self, name) not in accepted:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; {' or '.join(accepted)} is accepted"
                )
        if not self.watchdog_s > 0:
            raise ValueError(f"watchdog_s is {self.watchdog_s!r}; a positive number is accepted")


def run_spmd(
    fn: Callable[..., Any],
    world_size: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    backend: str = "virtual",
    device: torch.device | str | None = None,
    options: SpmdOptions | None = None,
) -> list[Any]:
    """Run `fn(*args, **kwargs)` once a rank, and return the results in rank order.

    With "virtual" the ranks are threads of this process, of which one runs at a time: every run
    takes the same course. Each has its own random state (torch's, Python's and NumPy's start with
    the caller's), its own groups, what torch.compile made for it alone, and the environment of a
    node of its own (RANK=r, LOCAL_RANK=0). All get the same `args`: a tensor that one rank changes
    in place is changed for all. A deadlock, or ranks that do not agree in a call, raise at once.

    With "gloo" and "nccl" they are processes: `fn` must be picklable, and results come back on the
    CPU. Under torchrun the processes that are there are the ranks, and each gets the list.

    Args:
        fn: the program.
        world_size: the number of ranks, 1 or more.
        args, kwargs: handed to the program.
        backend: "virtual", "gloo" or "nccl".
        device: where `default_device()` says that a rank computes. Default: as it says outside.
        options: how virtual ranks run.

    Raises:
        RankError: a rank failed; `rank` and `__cause__` say which, and how. DeadlockError and
            MismatchError are of this type.
        TypeError, ValueError: arguments that do not fit.

    >>> import torch, torch.distributed as dist
    >>> def program():
    ...     x = torch.full((2,), float(dist.get_rank()))
    ...     dist.all_reduce(x)
    ...     return x.tolist()
    >>> run_spmd(program, 4)
    [[6.0, 6.0], [6.0, 6.0], [6.0, 6.0], [6.0, 6.0]]
    """
    if not callable(fn):
        raise TypeError(f"run_spmd: fn is {fn!r}; a callable is accepted")
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise ValueError(f"run_spmd: world_size is {world_size!r}; an int of 1 or more is accepted")
    if backend not in _BACKENDS:
        raise ValueError(
            f"run_spmd: backend is {backend!r}; one of {', '.join(_BACKENDS)} is accepted"
        )
    if options is not None and not isinstance(options, SpmdOptions):
        raise TypeError(f"run_spmd: options is {options!r}; SpmdOptions(...) is accepted")
    if backend != "virtual":
        if options not in (None, SpmdOptions()):
            raise ValueError(f"run_spmd: options are for virtual ranks; backend is {backend!r}")
        from kernelbench_dist.distributed_collectives._real import run_real
        from kernelbench_dist.distributed_collectives.virtual import _log

        _log.refuse_real(backend)
        where = None if device is None else torch.device(device)
        return run_real(fn, world_size, args, kwargs or {}, backend=backend, device=where)
    return run_virtual(
        functools.partial(fn, *args, **(kwargs or {})), world_size, device, options or SpmdOptions()
    )


def run_virtual(
    program: Callable[[], Any],
    world_size: int,
    device: torch.device | str | None,
    options: SpmdOptions,
    *,
    initialised: bool = True,
) -> list[Any]:
    """Virtual ranks. Unless `initialised`, the program calls init_process_group itself."""
    from kernelbench_dist.distributed_collectives._current import current_rank
    from kernelbench_dist.distributed_collectives.device import default_device
    from kernelbench_dist.distributed_collectives.virtual._baton import Run
    from kernelbench_dist.distributed_collectives.virtual._schedule import WithFaults

    if current_rank() is not None:
        raise RuntimeError(
            "run_spmd: called within a virtual rank; ranks have no ranks of their own"
        )
    if options.faults is not None:
        options.faults.check(world_size)
    where = default_device() if device is None else torch.device(device)
    if where.type == "cuda" and where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    run = Run(
        world_size,
        where,
        order=options.order,
        mode=options.mode,
        schedule=WithFaults(options.faults) if options.faults is not None else None,
        watchdog_s=options.watchdog_s,
    )

    def rank_program() -> Any:
        if not initialised:
            return program()
        dist.init_process_group("virtual")
        try:
            return program()
        finally:
            rank = current_rank()
            # One that its run has left may wake in another's, whose groups are not its own.
            if dist.is_initialized() and not (rank is not None and rank.left):
                dist.destroy_process_group()

    return run.start([rank_program] * world_size)
