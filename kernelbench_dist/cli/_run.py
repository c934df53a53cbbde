"""The verb that runs a script as torchrun does, on virtual ranks."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import os
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import kernelbench_dist
from kernelbench_dist.cli._verbs import (
    PROGRAM,
    LacksError,
    Outcome,
    add_device,
    new_verb,
    one_or_more,
)
from kernelbench_dist.distributed_collectives._current import current_rank

if TYPE_CHECKING:
    import torch

    from kernelbench_dist.distributed_collectives import RankError

_EPILOG = """
Options that name a meeting point or restarts (--rdzv-*, --master-*, --node-rank, --local-addr,
--max-restarts, --monitor-interval, --start-method, --role, --standalone, --virtual-local-rank) are
accepted and mean nothing: the ranks are threads of this one process.

Each rank runs the script as a __main__ of its own, in turns, with torchrun's environment
(LOCAL_RANK is 0: each rank is a node of its own). init_process_group joins the virtual ranks,
whatever backend it names. Ranks share what belongs to a process: modules that the script imports,
with their globals (one that reads RANK when it is imported reads the first rank's, and one that
communicates then keeps the others waiting for its import), Python's and NumPy's random state,
logging, the working directory, os.environ but for the ranks' own variables. signal.signal raises
ValueError in a rank, which is not the main thread. Instances of the script's classes go between
ranks by pickle; the classes of two ranks are two.
To have torchrun's bits, set OMP_NUM_THREADS=1 as it does, and --order gloo_ring.

Exit codes: 0; 1 a rank failed, or that of the script's own sys.exit; 2 wrong use; 3 environment.
"""


def add_to(verbs: Any) -> None:
    """Add the verb."""
    verb = new_verb(
        verbs,
        "run",
        "run a script as torchrun does, on virtual ranks of one device",
        "--nproc-per-node 4 train.py --steps 10",
        _run,
    )
    verb.epilog += "\n" + _EPILOG
    verb.add_argument(
        "--nproc-per-node",
        "--nproc_per_node",
        type=_ranks_per_node,
        default=1,
        metavar="N",
        help="ranks a node: a number, or as torchrun has them, gpu, cpu or auto, one for each "
        "(default: %(default)s)",
    )
    verb.add_argument(
        "--nnodes",
        type=_nodes,
        default=1,
        metavar="N",
        help="nodes; the ranks multiply. Of MIN:MAX it is MAX (default: %(default)s)",
    )
    verb.add_argument(
        "-m", "--module", action="store_true", help="SCRIPT is a module, as for python -m"
    )
    verb.add_argument(
        "--order",
        choices=("rank", "gloo_ring"),
        default="rank",
        help="of the terms of a sum: from rank 0 up, or as gloo has it (default: %(default)s)",
    )
    verb.add_argument(
        "--mode",
        choices=("strict", "portable"),
        default="strict",
        help="strict refuses what real backends get wrong without a word, portable also what only "
        "virtual ranks take (default: %(default)s)",
    )
    add_device(verb)
    verb.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="run the ranks in a random order, the same for the same N (default: rank order)",
    )
    verb.add_argument(
        "--prefix",
        action="store_true",
        help="begin each line that a rank prints with its name, and print whole lines only (what "
        "C++ or a process of the script writes is not seen; no debugger's prompt is either)",
    )
    verb.add_argument(
        "--log",
        metavar="FILE",
        help="write the ranks' communication there, for ui.perfetto.dev or chrome://tracing; its "
        "times are not those of real ranks",
    )
    verb.add_argument(
        "--table", action="store_true", help="print the calls and bytes of each rank at the end"
    )
    for flag in ("standalone", "virtual-local-rank"):
        verb.add_argument(*_spelled(flag), action="store_true", help=argparse.SUPPRESS)
    for name in (
        "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "master-addr", "master-port",
        "node-rank", "local-addr", "max-restarts", "monitor-interval", "start-method", "role",
    ):  # fmt: skip
        verb.add_argument(*_spelled(name), help=argparse.SUPPRESS)
    verb.add_argument("script", metavar="SCRIPT", help="a Python file, or with -m a module")
    verb.add_argument(
        "script_arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="the script's own"
    )


def _spelled(name: str) -> list[str]:
    return list(dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}")))


def _run(arguments: argparse.Namespace) -> Outcome:
    import torch.distributed as dist

    if not dist.is_available():
        raise LacksError("this torch is built without torch.distributed: install one that has it")
    from kernelbench_dist.distributed_collectives import Faults, RankError, SpmdOptions
    from kernelbench_dist.distributed_collectives.communication_log import CommunicationLog
    from kernelbench_dist.distributed_collectives.spmd import run_virtual

    script = _Script(arguments.script, arguments.script_arguments, arguments.module)
    options = SpmdOptions(
        order=arguments.order,
        mode=arguments.mode,
        faults=None if arguments.seed is None else Faults(seed=arguments.seed),
    )
    device = _device(arguments.device)
    if arguments.log is not None:
        open(arguments.log, "w").close()  # a place that is not to be written is named before
    world_size = arguments.nproc_per_node * arguments.nnodes
    log, code = CommunicationLog(), 0
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_process_of(script, arguments))
            script.check()
            if arguments.log is not None or arguments.table:
                stack.enter_context(log)
            run_virtual(script.run, world_size, device, options, initialised=False)
    except RankError as error:
        code = _report(error, world_size)
    finally:
        if arguments.log is not None:
            log.to_chrome(arguments.log)
    return Outcome(log.table() if arguments.table else "", code)


class _Script:
    """What each rank runs, as a `__main__` of its own."""

    def __init__(self, name: str, arguments: list[str], as_module: bool) -> None:
        self.name = name
        self.arguments = arguments
        self.as_module = as_module
        self.mains: dict[int, types.ModuleType] = {}
        self.folder = os.getcwd() if as_module else os.path.dirname(os.path.abspath(name))

    def check(self) -> None:
        """That there is one, on the path that ranks will have."""
        if self.as_module:
            if importlib.util.find_spec(self.name.split(".")[0]) is None:
                raise ValueError(f"run: there is no module {self.name!r}")
        elif not os.path.isfile(self.name):
            raise ValueError(f"run: there is no file {self.name!r}")

    def run(self) -> None:
        """In a rank: the script from its first line to its last."""
        rank = current_rank()
        assert rank is not None
        main = self.mains[rank.index] = types.ModuleType("__main__")
        code, more = self.load()
        vars(main).update(more)
        # A list of its own, as far as one for all can be: scripts read it when they begin.
        shown = main.__file__ if self.as_module else self.name
        sys.argv = [str(shown), *self.arguments]
        exec(code, vars(main))

    def load(self) -> tuple[types.CodeType, dict[str, Any]]:
        if not self.as_module:
            path = os.path.abspath(self.name)
            with io.open_code(path) as file:
                code = compile(file.read(), path, "exec", dont_inherit=True)
            return code, {"__file__": path}
        spec = importlib.util.find_spec(self.name)
        if spec is not None and spec.submodule_search_locations is not None:  # a package
            spec = importlib.util.find_spec(f"{self.name}.__main__")
        loaded = getattr(spec and spec.loader, "get_code", lambda name: None)(spec and spec.name)
        if spec is None or loaded is None:
            raise ImportError(f"no module named {self.name!r} that can be run")
        return loaded, {
            "__file__": spec.origin,
            "__spec__": spec,
            "__package__": spec.parent,
            "__loader__": spec.loader,
        }


@contextlib.contextmanager
def _process_of(script: _Script, arguments: argparse.Namespace) -> Iterator[None]:
    """What a process has once, as torchrun's workers have it; as it was, afterwards."""
    program = sys.modules["__main__"]
    found = sys.argv, sys.path[:], sys.stdout, sys.stderr
    asked = {
        "MASTER_ADDR": arguments.master_addr or "127.0.0.1",
        "MASTER_PORT": arguments.master_port or "29500",
        "TORCHELASTIC_RUN_ID": arguments.rdzv_id or "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": arguments.max_restarts or "0",
    }
    environment = {name: os.environ.get(name) for name in asked}
    os.environ.update(asked)
    sys.path[:1] = [script.folder]
    here = _Here()
    sys.modules["__main__"] = _each_ranks_own(lambda: script.mains.get(here.rank(), program))
    outputs: list[_Prefixed] = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # as python -u, for a rank that dies
        if arguments.prefix:
            outputs.append(_Prefixed(stream, here))
            setattr(sys, name, outputs[-1])
    try:
        yield
    finally:
        for output in outputs:
            output.end()
        sys.argv, sys.path[:], sys.stdout, sys.stderr = found
        sys.modules["__main__"] = program
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _Here:
    """Whose thread this is: one that a rank has started counts as that of the rank that runs."""

    def __init__(self) -> None:
        self._run: Any = None

    def rank(self) -> int:
        rank = current_rank()
        if rank is not None:
            self._run = rank.run
        elif self._run is not None:
            rank = self._run.holder
        return -1 if rank is None else rank.index


def _each_ranks_own(module: Callable[[], types.ModuleType]) -> types.ModuleType:
    """A stand-in for a rank's `__main__`: pickle and dataclasses look there for its classes."""

    class Main(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            return getattr(module(), name)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(module(), name, value)

        def __delattr__(self, name: str) -> None:
            delattr(module(), name)

        def __dir__(self) -> list[str]:
            return dir(module())

    return Main("__main__")


class _Prefixed:
    """A stream of whole lines, each with its rank's name before it."""

    def __init__(self, stream: Any, here: _Here) -> None:
        self._stream = stream
        self._here = here
        self._begun: dict[int, str] = {}
        self._lock = threading.Lock()  # a rank may have threads of its own

    def write(self, text: str) -> int:
        with self._lock:
            rank = self._here.rank()
            *lines, self._begun[rank] = (self._begun.get(rank, "") + text).split("\n")
            if lines:
                self._stream.write("".join(f"{self._name(rank)}{line}\n" for line in lines))
        return len(text)

    def writelines(self, lines: Any) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        self._stream.flush()

    def end(self) -> None:
        """Lines that their rank has not ended."""
        for rank, line in sorted(self._begun.items()):
            if line:
                self._stream.write(f"{self._name(rank)}{line}\n")
        self._begun.clear()
        self._stream.flush()

    def _name(self, rank: int) -> str:
        return "" if rank < 0 else f"[rank {rank}] "

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _report(error: RankError, world_size: int) -> int:
    """Say on stderr what a rank has failed of; the exit code."""
    cause = error.__cause__
    name = f"{PROGRAM}: rank {error.rank} of {world_size}"
    if isinstance(cause, SystemExit):
        code = cause.code if isinstance(cause.code, int) else 1
        said = "" if isinstance(cause.code, int) else f"{cause.code}\n"
        print(f"{said}{name} exits with code {code}", file=sys.stderr)
        return code
    told = traceback.TracebackException.from_exception(cause or error)
    _hide_our_frames(told)
    # A deadlock is no one rank's, and has no place in the script but those that it lists.
    head = f"{name} failed:\n" if told.stack or cause else f"{PROGRAM}: "
    lines = told.format() if told.stack else told.format_exception_only()
    print(f"{head}{''.join(lines)}".rstrip("\n"), file=sys.stderr)
    return 1


def _hide_our_frames(told: traceback.TracebackException | None) -> None:
    if told is None:
        return
    ours = os.path.dirname(os.path.abspath(kernelbench_dist.__file__)) + os.sep
    told.stack[:] = [frame for frame in told.stack if not frame.filename.startswith(ours)]
    for other in (told.__cause__, told.__context__, *(getattr(told, "exceptions", None) or ())):
        _hide_our_frames(other)


def _device(name: str | None) -> torch.device | None:
    import torch

    if name is None:
        return None
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"run: --device is {name!r}; cpu, cuda or cuda:N is accepted")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise LacksError(f"run: --device is {name!r}; torch sees {count} CUDA devices")
    return device


def _ranks_per_node(text: str) -> int:
    if text in ("auto", "gpu", "cpu"):
        import torch

        gpus = torch.cuda.device_count()
        if text == "gpu" and not gpus:
            raise argparse.ArgumentTypeError("gpu: torch sees no GPU; give a number of ranks")
        return gpus if gpus and text != "cpu" else os.cpu_count() or 1
    return one_or_more(text, "a number of 1 or more, gpu, cpu or auto")


def _nodes(text: str) -> int:
    return one_or_more(text.split(":")[-1], "a number of 1 or more, or MIN:MAX")
