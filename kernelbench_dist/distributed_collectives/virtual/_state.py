"""What every process has of its own, and ranks that share a process must be given.

torch keeps some of it a thread: grad mode, autocast, the current stream. The ranks' threads start
with the caller's. The rest belongs to the process: the random generators of torch, Python and
NumPy, torch's default dtype and process group, RANK in the environment. Each rank's is put in place
when it gets the baton.
"""

from __future__ import annotations

import contextlib
import os

import torch

from kernelbench_dist.distributed_collectives.virtual import _compile, _random, _torch

_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)


class RankState:
    """One rank's part of the process's state."""

    def __init__(self, rank: int, surroundings: Surroundings) -> None:
        self.rank = str(rank)
        self.surroundings = surroundings
        self.torch = _torch.RankGlobals()
        self.cpu = torch.default_generator.get_state()
        self.dtype = torch.get_default_dtype()
        self.python = _random.PythonRandom()
        self.numpy = surroundings.numpy.rank()
        self.cuda = [(g, g.clone_state()) for g in surroundings.generators]

    def take(self) -> None:
        """Keep what this rank has made of the process's state."""
        self.cpu = torch.default_generator.get_state()
        self.dtype = torch.get_default_dtype()
        self.python.take()
        self.numpy.take()
        self.torch.take()

    def put(self) -> None:
        """Make the process's state this rank's."""
        torch.default_generator.set_state(self.cpu)
        if torch.get_default_dtype() != self.dtype:
            torch.set_default_dtype(self.dtype)
        for generator, own in self.cuda:
            generator.graphsafe_set_state(own)  # they share it from now on: nothing is to be taken
        self.python.put()
        self.numpy.put()
        self.torch.put()
        self.surroundings.compiled.look()
        os.environ["RANK"] = os.environ["GROUP_RANK"] = self.rank


class Surroundings(contextlib.AbstractContextManager[None]):
    """The caller's state: handed to the ranks' threads, and left as it was found."""

    def __init__(self, world_size: int, device: torch.device) -> None:
        self.world_size = world_size
        self.device = device
        self.grad_mode = torch.is_grad_enabled()
        self.inference = torch.is_inference_mode_enabled()
        self.autocast = {
            kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in {"cpu", device.type}
        }
        self.cache = torch.is_autocast_cache_enabled()
        self.stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self.generators = (
            [torch.cuda.default_generators[device.index or 0]] if device.type == "cuda" else []
        )
        self.numpy = _random.NumpyRandom()
        self.compiled = _compile.CompiledByRank()

    def state(self, rank: int) -> RankState:
        return RankState(rank, self)

    def enter_thread(self) -> None:
        """In a rank's thread, which ends with the run: nothing here is undone."""
        torch.autograd.set_multithreading_enabled(False).__enter__()
        torch.set_grad_enabled(self.grad_mode)
        if self.inference:
            torch.inference_mode(True).__enter__()
        for kind, (enabled, dtype) in self.autocast.items():
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(self.cache)
        if self.stream is not None:
            torch.cuda.set_stream(self.stream)  # it also makes the stream's device current

    def __enter__(self) -> None:
        _torch.keep_fake_cuda()
        self._found = {name: os.environ.get(name) for name in _VARIABLES}
        self._cpu = torch.get_rng_state()
        self._cuda = [(g, g.graphsafe_get_state()) for g in self.generators]
        self._dtype = torch.get_default_dtype()
        self._python = _random.PythonRandom()
        os.environ.update(
            WORLD_SIZE=str(self.world_size),
            LOCAL_RANK="0",
            LOCAL_WORLD_SIZE="1",
            GROUP_WORLD_SIZE=str(self.world_size),
        )
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
        self._patches = _torch.Patches()
        self._patches.__enter__()
        self.compiled.__enter__()

    def __exit__(self, *_: object) -> None:
        self.compiled.__exit__()
        self._patches.__exit__()
        for name, value in self._found.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._python.put()
        self.numpy.put_back()
        torch.set_rng_state(self._cpu)
        for generator, own in self._cuda:
            generator.graphsafe_set_state(own)
        torch.set_default_dtype(self._dtype)
