"""A problem's second form: its module made to offer the program of one rank.

A file that has both forms defines, beside Model, whose inputs are stacked (dim 0 is the rank):

    RankModel   the same formula as a torch.distributed program: forward takes this rank's slices,
                returns this rank's output. Parameters are Model's, by name, whole on every rank.
    SHARED      names of forward's arguments that every rank has whole (default: none).
    OUTPUT      "stacked" (rank r's output is Model's output[r]) or "same" (each rank has it whole);
                where there are several outputs, one word for each, or one for all.
    R           the number of ranks.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

OUTPUTS = ("stacked", "same")
_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def fault(names: dict[str, Any]) -> str | None:
    """What is missing or wrong of the second form; None where it is whole."""
    model = names.get("RankModel")
    if model is None:
        return "it defines no RankModel"
    if not (isinstance(model, type) and issubclass(model, torch.nn.Module)):
        return f"RankModel must be a subclass of torch.nn.Module, not {model!r}"
    if type(names.get("R")) is not int:
        return f"R, the number of ranks, must be an int, not {names.get('R')!r}"
    if starred := [name for name in arguments(names["Model"]) if name.startswith("*")]:
        return f"Model.forward takes {starred[0]}; each input by its name is wanted"
    unknown = [name for name in names.get("SHARED", ()) if name not in arguments(names["Model"])]
    if unknown:
        return f"SHARED names {', '.join(map(repr, unknown))}, which Model.forward does not take"
    said = names.get("OUTPUT")
    words = said if isinstance(said, tuple) else (said,)
    if not words or any(word not in OUTPUTS for word in words):
        return f"OUTPUT is {said!r}; 'stacked', 'same' or a tuple of them is accepted"
    return None


def arguments(model: type[torch.nn.Module]) -> list[str]:
    """The names of forward's arguments, with the stars of those that have any."""
    found = list(inspect.signature(model.forward).parameters.values())[1:]
    return [str(p).partition(":")[0] if p.kind in _STARRED else p.name for p in found]


def make_program(module: types.ModuleType, world_size: int) -> None:
    """Let the module offer its second form, on so many ranks, under the names of the first."""
    names = vars(module)
    shares = [name in names.get("SHARED", ()) for name in arguments(names["Model"])]
    names.pop("get_cost", None)  # that of the stacked inputs
    sizes, varies = without_ranks(names.get("SIZES", {}), names.get("VARIES", ()))
    names.update(
        Model=names["RankModel"],
        get_inputs=_slices(names["get_inputs"], shares),
        R=world_size,
        WORLD_SIZE=world_size,
        VARIES=varies,
        SIZES=sizes,
    )


def without_ranks(
    sizes: Mapping[str, Mapping[str, int]], varies: Iterable[str]
) -> tuple[dict[str, dict[str, int]], tuple[str, ...]]:
    """SIZES and VARIES where R is given."""
    rest = {name: {k: v for k, v in at.items() if k != "R"} for name, at in sizes.items()}
    return rest, tuple(name for name in varies if name != "R")


def counts(names: Mapping[str, Any]) -> dict[str, int]:
    """A file's sizes, R and WORLD_SIZE among them: its integers in capitals."""
    return {k: value for k, value in names.items() if k.isupper() and type(value) is int}


def _slices(draw: Callable[..., list[Any]], shares: list[bool]) -> Callable[..., list[Any]]:
    """get_inputs of one rank: its slices of what all ranks draw alike."""
    takes = inspect.signature(draw).parameters

    def get_inputs(sizes_generator: torch.Generator, jitter: bool = True, rank: int = 0) -> Any:
        options = {"generator": sizes_generator, "jitter": jitter}
        inputs = draw(**{k: v for k, v in options.items() if k in takes})
        return [
            value if shared or not isinstance(value, torch.Tensor) else value[rank].clone()
            for value, shared in zip(inputs, shares, strict=True)
        ]

    return get_inputs
