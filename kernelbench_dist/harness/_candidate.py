"""A submission's worker. All in this file runs beside untrusted code, which can change it."""

from __future__ import annotations

import sys
import threading
import types
from pathlib import Path
from typing import Any

import torch

from kernelbench_dist.harness import _memory, _model, _tree
from kernelbench_dist.harness._channel import Channel, dtype_name
from kernelbench_dist.harness._ranks import OwnProcess, Reply
from kernelbench_dist.harness._served import Request, Served
from kernelbench_dist.harness.build import BuildRequest, load_built


class ParametersDifferError(Exception):
    """The parameters of ModelNew are not those of Model."""


class BuildFailedError(RuntimeError):
    """An extension did not compile; the judge has the compiler's messages."""


class Candidate(Served):
    """One submission on one device, as one rank has it."""

    def __init__(self, first: dict[str, Any], ranks: OwnProcess, channel: Channel) -> None:
        super().__init__(first, ranks)
        self.channel = channel
        self.names: types.ModuleType

    def requests(self) -> dict[str, Request]:
        return {
            **super().requests(),
            "load": self.load,
            "construct": self.construct,
            "run": self.run,
            "check": self.check,
        }

    def load(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        """Run the file. What it builds is built by the judge, on its behalf."""
        self.join(message)
        # Not at the top: importing it asks for GPUs, which would spoil CUDA for later forks.
        from torch.utils import cpp_extension

        builder = _Builder(self.channel)
        cpp_extension.load_inline = builder.load_inline
        cpp_extension.load = builder.load
        path = Path(message["file"]).resolve()
        path.write_text(message["text"], encoding="utf-8")
        # Virtual ranks share sys.modules, and each has its own of the file.
        module = types.ModuleType(f"{path.stem}_{self.rank}" if self.rank else path.stem)
        module.__file__ = str(path)
        # Registered, so that pickle, dataclasses, inspect and triton find it.
        sys.modules[module.__name__] = module
        exec(compile(message["text"], str(path), "exec", dont_inherit=True), module.__dict__)
        found = getattr(module, "ModelNew", None)
        if not (isinstance(found, type) and issubclass(found, torch.nn.Module)):
            raise AttributeError(f"ModelNew is {found!r}; a torch.nn.Module class is accepted")
        self.names = module
        return {}, []

    def construct(self, message: dict[str, Any], tensors: list[torch.Tensor]) -> Reply:
        """Build ModelNew, and copy the reference's parameters and buffers into it by name."""
        names: list[str] = message["state"]
        count = len(tensors) - len(names)
        args = _tree.unpack(message["args"], tensors[:count])
        state = dict(zip(names, tensors[count:], strict=True))
        self.draws.clear()
        fixed = _model.fixed_sizes(self.names.ModelNew, args)
        module = _model.build(self.names.ModelNew, [] if fixed else args, self.device, self.dtype)
        own = {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }
        _check_parameters(module, own, state, set(message["parameters"]))
        with torch.no_grad():
            for name, value in state.items():
                if name in own:
                    own[name].copy_(value)
        self.module = module
        return {"fixed_sizes": fixed}, []

    def run(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        """One call of forward, and backward; the outputs as they are when it returns."""
        inputs = self.draws[message["id"]]
        _memory.poison_free_memory(message["largest_output_bytes"], self.device)
        threads = threading.active_count()
        with _model.mode(message["mode"]):
            leaves = _model.run(self.module, inputs, backward=self.backward)
        _model.synchronize(self.device)
        specs, copies = [], []
        for name, leaf in leaves:
            if isinstance(leaf, _model.Copy):
                specs.append({"name": name, "device": leaf.device, "is_real": leaf.is_real})
                copies.append(leaf.values)
            else:
                kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
                specs.append({"name": name, "not_a_tensor": kind})
        shapes = [[dtype_name(c.dtype), list(c.shape)] for c in copies]
        held = sum(c.numel() * c.element_size() for c in copies)
        reply = {
            "outputs": specs,
            "shapes": shapes,
            "new_threads": threading.active_count() - threads,
        }
        return reply, copies if held <= message["most_bytes"] else []

    def check(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        return {"unchanged": self.draws[message["id"]].unchanged()}, []


def _check_parameters(
    module: torch.nn.Module,
    own: dict[str, torch.Tensor],
    state: dict[str, torch.Tensor],
    parameters: set[str],
) -> None:
    """Raise ParametersDifferError, with all differences, where the state cannot be copied.

    Parameters must be the same on both sides. Buffers are copied where both have them: what the
    submission has besides is its own.
    """
    mine = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    wrong = [f"it lacks {name} {tuple(state[name].shape)}" for name in sorted(parameters - mine)]
    wrong += [f"it has {n} {tuple(own[n].shape)}" for n in sorted(mine - parameters)]
    for name, value in state.items():
        if name in own and own[name].shape != value.shape:
            wrong.append(f"{name} is {tuple(own[name].shape)}, and {tuple(value.shape)} there")
    if wrong:
        raise ParametersDifferError("; ".join(wrong))


class _Builder:
    """In place of torch's functions that build extensions: the judge builds, from a cache."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def load_inline(self, *args: Any, **options: Any) -> Any:
        return self._build(BuildRequest.from_load_inline(*args, **options))

    def load(self, *args: Any, **options: Any) -> Any:
        return self._build(BuildRequest.from_load(*args, **options))

    def _build(self, request: BuildRequest) -> Any:
        self.channel.send({"build": request.model_dump(mode="json")})
        reply, _ = self.channel.receive()
        if reply.get("failed"):
            raise BuildFailedError(reply["failed"])
        return load_built(reply["module"], reply["library"], request.is_python_module)
