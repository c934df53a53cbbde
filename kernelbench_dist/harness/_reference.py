"""The reference's worker: it runs the problem, draws inputs, and knows the exact answers."""

from __future__ import annotations

import hashlib
import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from kernelbench_dist import problems
from kernelbench_dist.harness import _draws, _model, _oracle, _tree
from kernelbench_dist.harness._channel import dtype_name
from kernelbench_dist.harness._ranks import OwnProcess, Reply
from kernelbench_dist.harness._served import Request, Served

_SAME_SHAPE_TRIES = 200

# What rank programs on virtual ranks often amount to by mistake, as changes of the inputs: the
# reference, given the changed inputs, gives the trivial answer to the true ones.
CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rank 0's part only": lambda x: torch.cat([x[:1], torch.zeros_like(x[1:])]),
    "ranks reversed": lambda x: x.flip(0),
    "the mean over ranks": lambda x: (
        x.to(torch.float64).mean(0, keepdim=True).to(x.dtype).expand_as(x).contiguous()
    ),
    "no communication": lambda x: x[:1].expand_as(x).contiguous(),
}


class Reference(Served):
    """A problem at one size on one device, as one rank has it."""

    def __init__(self, first: dict[str, Any], ranks: OwnProcess) -> None:
        super().__init__(first, ranks)
        self.problem: Any  # a problems.Problem
        self.exact_module: torch.nn.Module

    def requests(self) -> dict[str, Request]:
        return {
            **super().requests(),
            "load": self.load,
            "construct": self.construct,
            "draw": self.draw,
            "draw_many": self.draw_many,
            "eager": self.eager,
            "expect": self.expect,
            "cost": self.cost,
        }

    def load(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        self.join(message)
        self.problem = problems.load(message["problem"])
        names = vars(self.problem.module)
        self.helper = names["popcorn_pri"]
        self.constants = self.problem.constants
        return {
            "name": self.problem.name,
            "path": str(self.problem.path),
            "sha256": hashlib.sha256(self.problem.path.read_bytes()).hexdigest(),
            "constants": self.constants,
            "sizes": names.get("SIZES", {}),
            "varies": list(names.get("VARIES", ())),
            "right_trivial_answers": sorted(names.get("RIGHT_TRIVIAL_ANSWERS", ())),
            "backward": bool(names.get("BACKWARD", False)),
            "deterministic": bool(names.get("DETERMINISTIC", False)),
            "world_size": self.problem.world_size,
            "notes": self.problem.notes,
        }, []

    def construct(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        """Set the sizes, those not given as in the file, and build the module from a seed.

        Parameters that hold one value only, as biases may, are moved, each element on its own.
        """
        for name, value in {**self.constants, **message["sizes"]}.items():
            setattr(self.problem.module, name, value)
        self.draws.clear()
        args = list(self.problem.get_init_inputs())
        with _seeded(message["seed"]):
            self.module = _model.build(self.problem.Model, args, self.device, self.dtype)
        generator = torch.Generator().manual_seed(message["seed"])
        with torch.no_grad():
            for parameter in self.module.parameters():
                parameter.copy_(_draws.stir(parameter, generator))
        self.exact_module = _model.build(self.problem.Model, args, self.device, torch.float64)
        state = self.module.state_dict()
        self.exact_module.load_state_dict(
            {k: _model.cast(v, torch.float64) for k, v in state.items()}
        )
        tensors: list[torch.Tensor] = []
        packed = _tree.pack(args, tensors)
        parameters = [name for name, _ in self.module.named_parameters()]
        return (
            {
                "args": packed,
                "state": list(state),
                "parameters": parameters,
                "sizes": message["sizes"],
            },
            [*tensors, *state.values()],
        )

    def draw(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        """New inputs from a seed, kept under an id, and returned with the cotangents."""
        seed = message["seed"]
        packed, tensors = self._drawn(
            seed, message["sizes_seed"], jitter=message["jitter"], values=message["values"]
        )
        inputs = _model.place(packed, tensors, self.device)
        if self.backward:
            leaves = _model.run(self.module, inputs, backward=False)
            self.cotangent_likes = [
                leaf.values
                for _, leaf in leaves
                if isinstance(leaf, _model.Copy) and leaf.values.is_floating_point()
            ]
            inputs.cotangents = self._cotangents(seed)
        self.draws[message["id"]] = inputs
        reply = {"inputs": packed, "count": len(tensors)}
        return reply, [*inputs.leaves, *inputs.cotangents]

    def draw_many(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        """Inputs from many seeds, all of the shapes of a draw that is kept; none of them is kept.

        Where a seed gives other shapes, the next ones are tried; "found" says whether one did.
        Sizes are alike on all ranks, so that all try as often.
        """
        like = self.draws[message["like"]]
        shapes = [t.shape for t in like.leaves]
        result: list[torch.Tensor] = []
        for first, first_sizes in zip(message["seeds"], message["sizes_seeds"], strict=True):
            for i in range(_SAME_SHAPE_TRIES):
                seed = first + i
                _, tensors = self._drawn(
                    seed, first_sizes + i, jitter=message["jitter"], values="normal"
                )
                if [t.shape for t in tensors] == shapes:
                    break
            else:
                return {"found": False}, []
            result += tensors
            if self.backward:
                result += self._cotangents(seed)
        return {"found": True}, result

    def eager(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        """The reference's own outputs in the judged dtype; whether it left its inputs alone."""
        inputs = self.draws[message["id"]]
        leaves = _model.run(self.module, inputs, backward=self.backward)
        _model.synchronize(self.device)
        for name, leaf in leaves:
            if not isinstance(leaf, _model.Copy):
                raise TypeError(f"{name} is a {type(leaf).__name__}; a torch.Tensor is accepted")
        copies = [leaf.values for _, leaf in leaves]
        return {"names": [n for n, _ in leaves], "unchanged": inputs.unchanged()}, copies

    def expect(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        """The exact outputs and the bound on each element's error, both on the CPU.

        With "change" the inputs are changed first, and there are no bounds.
        """
        inputs = self.draws[message["id"]]
        change = CHANGES.get(message.get("change", ""))
        exact = self._exactly(inputs, lambda t: t if change is None else change(t))
        if change is not None:
            return {"names": [n for n, _ in exact]}, [t for _, t in exact]
        eager = [c.values for _, c in _model.run(self.module, inputs, backward=self.backward)]
        # An exact answer that is no wider than the judged one is the reference's own.
        eps = max((torch.finfo(t.dtype).eps for t in eager if t.is_floating_point()), default=0.0)
        generator = torch.Generator().manual_seed(1)

        def moved() -> list[torch.Tensor]:
            with self._moved_parameters(eps, generator):
                found = self._exactly(
                    inputs,
                    lambda t: _oracle.move(t, eps, generator) if t.is_floating_point() else t,
                )
            return [t for _, t in found]

        limits = _oracle.bounds([t for _, t in exact], eager, moved)
        reply = {
            "names": [n for n, _ in exact],
            "dtypes": [dtype_name(t.dtype) for t in eager],
        }
        return reply, [*(t for _, t in exact), *limits]

    def cost(self, message: dict[str, Any], _: list[torch.Tensor]) -> Reply:
        """Bytes that must move and FLOPs: the problem's own, or what inputs and outputs hold."""
        inputs = self.draws[message["id"]]
        declared = getattr(self.problem.module, "get_cost", None)
        if declared is not None:
            nbytes, flops = declared(*inputs.value)
            return {"bytes": int(nbytes), "flops": int(flops), "source": "problem"}, []
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            leaves = _model.run(self.module, inputs, backward=self.backward)
        held = [*inputs.leaves, *self.module.parameters(), *(c.values for _, c in leaves)]
        nbytes = sum(t.numel() * t.element_size() for t in held)
        return {"bytes": nbytes, "flops": counter.get_total_flops(), "source": "analysis"}, []

    def _drawn(
        self, seed: int, sizes_seed: int, *, jitter: bool, values: str
    ) -> tuple[Any, list[torch.Tensor]]:
        """The problem's inputs, packed, and their tensors in the judged dtype."""
        tensors: list[torch.Tensor] = []
        packed = _tree.pack(self._get_inputs(seed, sizes_seed, jitter=jitter), tensors)
        generator = torch.Generator().manual_seed(seed)
        return packed, [
            _draws.fill(_model.cast(t.detach(), self.dtype), values, generator) for t in tensors
        ]

    def _cotangents(self, seed: int) -> list[torch.Tensor]:
        """What backward starts from, for outputs like those of the last draw."""
        generator = torch.Generator().manual_seed(seed ^ 0x5EED)
        return [
            torch.randn(like.shape, generator=generator).to(self.device, like.dtype)
            for like in self.cotangent_likes
        ]

    def _get_inputs(self, seed: int, sizes_seed: int, *, jitter: bool) -> list[Any]:
        """Call the problem's get_inputs with what it takes of generators, jitter, rank.

        sizes_seed: the same on all ranks, whose inputs differ and whose sizes must not.
        """
        function = self.problem.get_inputs
        takes = set(inspect.signature(function).parameters)
        options: dict[str, Any] = {
            "generator": torch.Generator().manual_seed(seed),
            "sizes_generator": torch.Generator().manual_seed(sizes_seed),
            "jitter": jitter,
            "rank": self.rank,
            "world_size": self.world_size,
        }
        names = vars(self.problem.module)
        if self.world_size > 1:
            names["popcorn_pri"] = AlikeOnAllRanks(self.helper, sizes_seed)
        with _seeded(seed):
            value = function(**{k: v for k, v in options.items() if k in takes})
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"get_inputs() returned a {type(value).__name__}; a list is accepted")
        return list(value)

    def _exactly(
        self, inputs: _model.Inputs, change: Callable[[torch.Tensor], torch.Tensor]
    ) -> list[tuple[str, torch.Tensor]]:
        """The outputs in float64 (integers as they are), on inputs changed first."""
        wide = [change(_model.cast(t, torch.float64)) for t in inputs.leaves]
        by_id = {id(t): w for t, w in zip(inputs.leaves, wide, strict=True)}
        value = _tree.map_tensors(inputs.value, lambda t: by_id[id(t)])
        exact = _model.Inputs(value, wide, [c.to(torch.float64) for c in inputs.cotangents])
        leaves = _model.run(self.exact_module, exact, backward=self.backward)
        return [(name, _model.cast(leaf.values, torch.float64)) for name, leaf in leaves]

    @contextmanager
    def _moved_parameters(self, eps: float, generator: torch.Generator) -> Iterator[None]:
        held = [p for p in self.exact_module.parameters() if p.is_floating_point()]
        before = [p.detach().clone() for p in held]
        with torch.no_grad():
            for p in held:
                p.copy_(_oracle.move(p, eps, generator))
            try:
                yield
            finally:
                for p, old in zip(held, before, strict=True):
                    p.copy_(old)


class AlikeOnAllRanks:
    """The object by which files of the original form draw sizes, with a random state of its own."""

    def __init__(self, helper: Any, seed: int) -> None:
        self._helper = helper
        self._state = torch.Generator().manual_seed(seed).get_state()

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._helper, name)

        def draw(*args: Any, **options: Any) -> Any:
            own = torch.get_rng_state()
            torch.set_rng_state(self._state)
            try:
                return function(*args, **options)
            finally:
                self._state = torch.get_rng_state()
                torch.set_rng_state(own)

        return draw


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """All global random states seeded, for problems that draw from them."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    yield


def check_sizes(known: Mapping[str, int], sizes: Mapping[str, int]) -> None:
    """ValueError where a size is not one of the problem's, or no count."""
    for name, value in sizes.items():
        if name not in known:
            raise ValueError(f"size {name!r}; the problem has {', '.join(known) or 'none'}")
        if value < 0:
            raise ValueError(f"size {name}={value}; 0 or more is accepted")
