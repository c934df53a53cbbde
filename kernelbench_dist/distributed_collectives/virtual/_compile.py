"""What torch.compile has made for a rank is for that rank alone, and for its run.

Dynamo keeps compiled code for the process, and the rank is a constant in it wherever the program
asked for it: by `get_rank`, a group, a mesh or the environment. An entry of its cache is used with
the backend that it was made with, so each rank is given backends that equal no other rank's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple

import torch.distributed as dist

from kernelbench_dist.distributed_collectives._current import current_rank

_BACKEND = "_torchdynamo_orig_backend"  # where Dynamo looks for what a callback wraps


class _RankBackend(NamedTuple):
    """Not called: Dynamo compares it."""

    backend: Any
    rank: int


class CompiledByRank:
    """While ranks run, and once the program has imported Dynamo: that takes a second or more."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._began_without = False
        self._codes: set[CodeType] = set()

    def __enter__(self) -> None:
        self.look()
        self._began_without = not self._undo

    def look(self) -> None:
        """Called whenever a rank gets the baton."""
        if not self._undo and "torch._dynamo" in sys.modules:
            self._replace("torch._dynamo.eval_frame", "_callback_from_stance", _callback_of_rank)
            self._replace("torch._dynamo.convert_frame", "exceeds_recompile_limit", _exceeds)
            variables: Any = sys.modules["torch._dynamo.variables.distributed"]
            groups = getattr(variables, "ProcessGroupVariable", None)
            if groups is not None:  # torch 2.11: it knows groups by their very type
                found = vars(groups)["is_process_group"]
                self._undo.append(functools.partial(setattr, groups, "is_process_group", found))
                groups.is_process_group = staticmethod(_is_group)
            convert_frame: Any = sys.modules["torch._dynamo.convert_frame"]
            self._undo.append(convert_frame.register_bytecode_hook(self._compiled).remove)

    def _replace(self, name: str, function: str, by: Callable[..., Any]) -> None:
        module = sys.modules[name]
        torchs = getattr(module, function)
        self._undo.append(functools.partial(setattr, module, function, torchs))
        setattr(module, function, functools.partial(by, torchs))

    def _compiled(self, code: CodeType, _: CodeType) -> None:
        if current_rank() is not None:
            self._codes.add(code)

    def __exit__(self, *_: object) -> None:
        """A later run may have other groups, of which Dynamo would take these for equals."""
        if not self._undo:
            return
        while self._undo:
            self._undo.pop()()
        dynamo: Any = sys.modules["torch._dynamo"]
        if self._began_without:  # what was compiled before anybody looked is not in `_codes`
            dynamo.reset()
        for code in self._codes:
            dynamo.eval_frame.reset_code(code)


def _callback_of_rank(torchs: Callable[[Any], Any], callback: Any) -> Any:
    callback, me = torchs(callback), current_rank()
    if me is None or callback is None:
        return callback
    if callback is False:  # "run what is in the cache, whatever its backend": not for ranks
        return None
    backend = callback
    while hasattr(backend, _BACKEND):
        backend = getattr(backend, _BACKEND)
    if isinstance(backend, _RankBackend):
        return callback
    # No function of Python: Dynamo reads the stack to see from where its callback is called.
    own = functools.partial(callback)
    setattr(own, _BACKEND, _RankBackend(backend, me.identity))
    return own


def _is_group(value: object) -> bool:
    return isinstance(value, dist.ProcessGroup)


def _exceeds(torchs: Callable[..., Any], *args: Any) -> Any:
    """A process's limits, for as many as share this one."""
    me = current_rank()
    if me is None:
        return torchs(*args)
    config: Any = sys.modules["torch._dynamo.config"]
    limits = ("recompile_limit", "accumulated_recompile_limit")
    with config.patch({name: getattr(config, name) * me.run.size for name in limits}):
        return torchs(*args)
