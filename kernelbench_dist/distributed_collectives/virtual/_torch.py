"""All that is used of torch.distributed's private interface.

Tried with torch 2.11 to 2.14. What is replaced, is replaced while ranks run, and only for them:

- `distributed_c10d._world` holds the groups of the process: each rank has its own.
- groups are looked up by name in a registry; torch can keep one a thread, so that each rank may
  have its group "0".
- `init_process_group` and the function that makes any group join the virtual ranks, whatever
  backend is named, and `monitored_barrier`, which torch has for gloo alone, works.
- a DeviceMesh of one rank does not equal another rank's: DTensor keeps what it has worked out for a
  mesh, and that depends on the rank.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh

from kernelbench_dist.distributed_collectives._current import current_rank
from kernelbench_dist.distributed_collectives.virtual._calls import users_line

NAME = "virtual"
_GLOBALS = (  # each is None until it is used
    ("torch.distributed.tensor._random", "_rng_tracker"),
    ("torch._dynamo.pgo", "_CODE_STATE"),  # which sizes a compiled function has seen
)


class _RankWorld(c10d._World):
    """One rank's groups: torch's own class keeps them in globals, so that there is one a process.

    What torch reads from it and is not named here (later versions may add some) is as in torch's.
    """

    pg_map: dict[Any, Any] = None  # type: ignore[assignment]
    pg_names: dict[Any, Any] = None  # type: ignore[assignment]
    pg_group_ranks: dict[Any, Any] = None  # type: ignore[assignment]
    pg_backend_config: dict[Any, Any] = None  # type: ignore[assignment]
    tags_to_pg: dict[Any, Any] = None  # type: ignore[assignment]
    pg_to_tag: dict[Any, Any] = None  # type: ignore[assignment]
    group_count = 0

    def __init__(self) -> None:
        super().__init__()
        for name in (
            "pg_map",
            "pg_names",
            "pg_group_ranks",
            "pg_backend_config",
            "tags_to_pg",
            "pg_to_tag",
        ):
            setattr(self, name, {})


class RankGlobals:
    """What torch keeps in a module for the whole process, as one rank has it."""

    def __init__(self) -> None:
        self.world: c10d._World = _RankWorld()
        self.values: dict[str, Any] = {}

    def take(self) -> None:
        for module, name in _GLOBALS:
            if module in sys.modules:
                self.values[name] = getattr(sys.modules[module], name, None)

    def put(self) -> None:
        c10d._world = self.world
        for module, name in _GLOBALS:
            if module in sys.modules:
                setattr(sys.modules[module], name, self.values.get(name))


_c10d: Any = importlib.import_module("torch._C._distributed_c10d")
_one_registry_a_thread: Callable[[bool], None] = _c10d._set_thread_isolation_mode


def keep_fake_cuda() -> None:
    """Where there is no GPU, torch 2.11's fake tensors make the process's stand-in for one in the
    thread that uses them first, and the process dies in the next if that was a rank's, and ended.
    """
    if torch.__version__ < "2.13" and not torch.cuda.is_available():
        torch._C._ensureCUDADeviceGuardSet()


def _probe() -> None:
    missing = [
        name
        for name in ("_World", "_world", "_new_process_group_helper", "monitored_barrier")
        if not hasattr(c10d, name)
    ]
    if not hasattr(dist.distributed_c10d, "_world") or missing:
        raise RuntimeError(
            f"torch {torch.__version__} has no {', '.join(missing)} in torch.distributed: "
            "virtual ranks were made for torch 2.11 to 2.14"
        )


class Patches:
    """What is replaced while ranks run."""

    def __init__(self) -> None:
        _probe()
        # It keeps what it finds as the default group when it is imported: no rank's, that is.
        importlib.import_module("torch.distributed.nn.functional")
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        for module, name in (
            (c10d, "_backend"),
            (c10d, "_default_pg_init_method"),
            (sys, "excepthook"),
        ):
            if hasattr(module, name):
                self._undo.append(functools.partial(setattr, module, name, getattr(module, name)))
        callers = RankGlobals()
        callers.world = c10d._world
        callers.take()
        self._undo.append(callers.put)
        _one_registry_a_thread(True)
        self._undo.append(functools.partial(_one_registry_a_thread, False))
        for name, function in (
            ("init_process_group", _init_process_group),
            ("monitored_barrier", _monitored_barrier),
            ("_new_process_group_helper", _new_group),
            ("_warn_not_in_group", _not_in_group),
        ):
            for module in (dist, c10d):
                if hasattr(module, name):
                    self._undo.append(functools.partial(setattr, module, name, _TORCHS[name]))
                    setattr(module, name, function)

        self._undo.append(functools.partial(setattr, DeviceMesh, "__init__", _mesh_init))
        DeviceMesh.__init__ = _init_mesh  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        while self._undo:
            self._undo.pop()()


_TORCHS = {
    name: getattr(c10d, name)
    for name in (
        "init_process_group",
        "monitored_barrier",
        "_new_process_group_helper",
        "_warn_not_in_group",
    )
    if hasattr(c10d, name)
}


@functools.wraps(_TORCHS["init_process_group"])
def _init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: Any = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
    **more: Any,
) -> None:
    """Join the ranks of this run: there is nothing to meet at, and one device for all."""
    me = current_rank()
    if me is None:  # another thread of the process, whose groups are real
        _TORCHS["init_process_group"](
            backend, init_method, timeout, world_size, rank, store, group_name, pg_options,
            device_id, **more,
        )  # fmt: skip
        return
    for name, asked, own in (("rank", rank, me.index), ("world_size", world_size, me.run.size)):
        if asked not in (-1, own):
            raise ValueError(f"init_process_group: {name} is {asked}, and this rank's is {own}")
    hook = sys.excepthook
    _TORCHS["init_process_group"](
        NAME, timeout=timeout, world_size=me.run.size, rank=me.index, store=me.run.store
    )
    sys.excepthook = hook  # torch wraps it once a call: the ranks share it
    if backend is not None and ":" not in backend and "," not in backend:
        _call_it(c10d._get_default_group(), backend)


@functools.wraps(_TORCHS["_new_process_group_helper"])
def _new_group(
    group_size: int,
    group_rank: int,
    global_ranks_in_group: list[int],
    backend: Any,
    store: Any,
    *rest: Any,
    **more: Any,
) -> Any:
    make, me = _TORCHS["_new_process_group_helper"], current_rank()
    if me is None:
        return make(group_size, group_rank, global_ranks_in_group, backend, store, *rest, **more)
    name = more.get("group_name", rest[0] if rest else "")
    if global_ranks_in_group and name.isdigit():  # a name by count, so that all ranks must make it
        me.run.makes_group(me, global_ranks_in_group)
    more.update(backend_options=None, device_id=None)
    made = make(
        group_size, group_rank, global_ranks_in_group, dist.Backend(NAME), store, *rest, **more
    )
    if made[0] is c10d.GroupMember.NON_GROUP_MEMBER:
        me.outside.append(tuple(global_ranks_in_group))
    else:
        _call_it(made[0], str(backend))
    return made


def _not_in_group(op_name: str) -> None:
    """torch warns, and the program goes on without the communication."""
    me = current_rank()
    if me is None:
        _TORCHS["_warn_not_in_group"](op_name)
        return
    groups = "; ".join(", ".join(map(str, ranks)) for ranks in me.outside)
    # Not raised here: torch would replace it by an error of its own, on its way to a log.
    me.run.end_with(
        me,
        ValueError(
            f"{op_name} at {users_line()}: rank {me.index} is not in the group; the groups made "
            f"without it have the ranks {groups}"
        ),
    )


def _call_it(group: Any, backend: str) -> None:
    """Let `get_backend` answer as the program expects; new groups take this name on."""
    _, store = c10d._world.pg_map[group]
    if backend in dist.Backend.backend_list and backend != dist.Backend.UNDEFINED:
        c10d._world.pg_map[group] = (dist.Backend(backend), store)


@functools.wraps(_TORCHS["monitored_barrier"])
def _monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
    if current_rank() is None:
        return _TORCHS["monitored_barrier"](group, timeout, wait_all_ranks)
    if c10d._rank_not_in_group(group):
        return None
    here: Any = group or c10d._get_default_group()
    return here.monitored_barrier()


_mesh_init = DeviceMesh.__init__


@functools.wraps(_mesh_init)
def _init_mesh(self: Any, *args: Any, **kwargs: Any) -> None:
    _mesh_init(self, *args, **kwargs)
    rank = current_rank()
    if rank is not None:
        self._thread_id = rank.identity  # part of its hash and of what makes it equal
        self._hash = None
