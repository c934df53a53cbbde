"""What a submission's worker answers, checked before it is used: it may be forged."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernelbench_dist.harness._side import JudgedError
from kernelbench_dist.harness._verdicts import Verdict


class Answer(BaseModel):
    """Fields of the right types, and no others: an answer to another question is none."""

    model_config = ConfigDict(extra="forbid")
    ok: bool = True


class OutputAnswer(BaseModel):
    """One output: a tensor's device, or the name of its type where it is none."""

    name: str
    device: str = ""
    is_real: bool = False
    not_a_tensor: str | None = None


class RunAnswer(Answer):
    """`shapes` holds (dtype's name, dims) of each output that is a tensor."""

    outputs: list[OutputAnswer]
    shapes: list[tuple[str, list[int]]]
    new_threads: int


class PoolAnswer(Answer):
    method: Literal["graph", "events", "wall"]
    reason: str | None


class SampleAnswer(Answer):
    us: float = Field(gt=0, allow_inf_nan=False)
    calls: int = Field(gt=0)


class LaunchesAnswer(Answer):
    """`kernels` holds (name, us) of each; None where the profiler recorded nothing."""

    operators: list[str]
    kernels: list[tuple[str, float]] | None
    copies: int = 0
    fills: int = 0


class MemoryAnswer(Answer):
    peak_above_inputs_bytes: int | None


A = TypeVar("A", bound=Answer)


def read(kind: type[A], reply: dict[str, Any]) -> A:
    """The answer; JudgedError where it is none of this kind."""
    try:
        return kind.model_validate(reply)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise JudgedError(
            Verdict.RUNTIME_ERROR,
            f"its process gave an answer that is none: {at}: {first['msg']}"[:300],
        ) from None
