"""Whether the two forms of a problem agree: stacked virtual ranks, and a program of one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from kernelbench_dist import problems
from kernelbench_dist.distributed_collectives import run_spmd
from kernelbench_dist.problems import Problem


@dataclass(frozen=True)
class Case:
    """One problem at one size, with one draw of its inputs and parameters."""

    problem: str
    world_size: int
    sizes: Mapping[str, int]
    seed: int


def disagreements(cases: Sequence[Case], backend: str) -> list[str | None]:
    """For each case (all of one world size), where the forms differ in float64; None: nowhere."""
    states, wanted, words = [], [], []
    for case in cases:
        problem = problems.load(case.problem)
        sizes = {**case.sizes, "R": case.world_size}
        for name, value in sizes.items():
            setattr(problem.module, name, value)
        model = _module(problem, case.seed)
        generator = torch.Generator().manual_seed(case.seed)
        wanted.append(_outputs(model, problem.get_inputs(generator=generator, jitter=False)))
        states.append(model.state_dict())
        said = problem.module.OUTPUT
        words.append(said if isinstance(said, tuple) else (said,) * len(wanted[-1]))
    per_rank = run_spmd(
        _run_all, cases[0].world_size, (list(cases), states), backend=backend, device="cpu"
    )
    return [
        _difference(words[i], wanted[i], [outputs[i] for outputs in per_rank])
        for i in range(len(cases))
    ]


def _run_all(cases: Sequence[Case], states: Sequence[Any]) -> list[list[torch.Tensor]]:
    """On one rank: the outputs of every case's program."""
    results = []
    for case, state in zip(cases, states, strict=True):
        problem = problems.load(f"{case.problem}@{case.world_size}")
        for name, value in case.sizes.items():
            if name in problem.constants:
                setattr(problem.module, name, value)
        model = _module(problem, case.seed)
        model.load_state_dict(state)
        inputs = problem.get_inputs(
            sizes_generator=torch.Generator().manual_seed(case.seed),
            jitter=False,
            rank=dist.get_rank(),
        )
        results.append(_outputs(model, inputs))
    return results


def _module(problem: Problem, seed: int) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return problem.Model(*problem.get_init_inputs()).to(torch.float64)


def _wide(value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(torch.float64) if is_float else value


def _outputs(model: torch.nn.Module, inputs: Sequence[Any]) -> list[torch.Tensor]:
    with torch.no_grad():
        return [leaf.cpu() for leaf in pytree.tree_leaves(model(*map(_wide, inputs)))]


def _difference(
    words: Sequence[str], wanted: Sequence[torch.Tensor], ranks: Sequence[Sequence[torch.Tensor]]
) -> str | None:
    if len(words) != len(wanted):
        return f"OUTPUT has {len(words)} words and Model gives {len(wanted)} outputs"
    for rank, got in enumerate(ranks):
        if len(got) != len(wanted):
            return f"rank {rank} gives {len(got)} outputs, and Model {len(wanted)}"
        for i, (word, whole, mine) in enumerate(zip(words, wanted, got, strict=True)):
            expected = whole[rank] if word == "stacked" else whole
            at = f"rank {rank}, output {i} ({word})"
            if mine.shape != expected.shape or mine.dtype != expected.dtype:
                return (
                    f"{at} is {tuple(mine.shape)} {mine.dtype}; Model's is "
                    f"{tuple(expected.shape)} {expected.dtype}"
                )
            if not torch.allclose(mine, expected, rtol=1e-10, atol=1e-10, equal_nan=True):
                worst = (mine.double() - expected.double()).abs().max().item()
                return f"{at} differs from Model's by up to {worst:.3g}"
    return None
