"""Whether a problem can judge at all: it runs, answers depend on inputs, trivial answers fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from kernelbench_dist.harness import _values
from kernelbench_dist.harness._problem import Draw, derived
from kernelbench_dist.harness._reference import CHANGES
from kernelbench_dist.harness._session import Session
from kernelbench_dist.harness._side import JudgedError
from kernelbench_dist.harness._verdicts import Verdict

_DRAWS = 3

TRIVIAL_ANSWERS = (
    "zeros",
    "a constant",
    "a remembered answer",
    "the input itself",
    *CHANGES,
)


def audit(session: Session, seed: int, sizes: Mapping[str, int]) -> dict[str, bool]:
    """Run the reference on some draws; which trivial answers pass for it.

    Raises JudgedError(PROBLEM_ERROR) where the reference does not run, is not deterministic or
    changes its inputs, or where the trivial answers that pass are not those that it declares.
    """
    session.construct_reference(seed, sizes)
    passing: dict[str, bool] = {}
    for i in range(_DRAWS):
        draw = session.draw(derived(seed, f"audit {i}"))
        _check_runs(session, draw)
        expected = session.expect(draw)
        # Passing once is luck: it must pass for every draw.
        for name, passes in _trivial(session, draw, expected).items():
            passing[name] = passing.get(name, True) and passes
        session.reference.ask("drop", {"id": draw.id})
    found = {name for name, passes in passing.items() if passes}
    declared = session.info.right_trivial_answers
    if unknown := declared - set(TRIVIAL_ANSWERS):
        raise _broken(
            f"RIGHT_TRIVIAL_ANSWERS names {_listed(unknown)}; {_listed(TRIVIAL_ANSWERS)} are known"
        )
    if undeclared := found - declared:
        raise _broken(
            f"a submission passes with {_listed(undeclared)}: its answers hardly depend on its "
            "inputs, or RIGHT_TRIVIAL_ANSWERS does not declare what is right"
        )
    if absent := (declared & set(passing)) - found:
        raise _broken(f"RIGHT_TRIVIAL_ANSWERS declares {_listed(absent)}, which fails")
    return passing


def _check_runs(session: Session, draw: Draw) -> None:
    first = session.reference.ask("eager", {"id": draw.id}, step="forward()")
    again = session.reference.ask("eager", {"id": draw.id}, step="forward()")
    for (reply, a), (_, b) in zip(first, again, strict=True):
        if not a:
            raise _broken("forward() returns no tensor")
        if not reply["unchanged"]:
            raise _broken("forward() changes its inputs")
        if not _values.same_bits(a, b):
            # A reference with atomics may differ in its last bits, but not in more.
            apart = [(x.double() - y.double()).abs().max() for x, y in zip(a, b, strict=True)]
            if any(bool(d > 1e-2 * y.double().abs().max()) for d, y in zip(apart, a, strict=True)):
                raise _broken("forward() gives another answer when it runs again")


def _trivial(session: Session, draw: Draw, expected: Sequence[_values.Expected]) -> dict[str, bool]:
    """Which trivial answers pass on every rank for one draw; those that do not apply are absent."""
    answers: dict[str, list[list[torch.Tensor]]] = {
        "zeros": [[torch.zeros_like(v) for v in e.values] for e in expected],
        "a constant": [[_constant(v) for v in e.values] for e in expected],
    }
    firsts = [tensors[0] if tensors else None for tensors in draw.tensors]
    pairs = list(zip(firsts, expected, strict=True))
    if all(x is not None and x.shape == e.values[0].shape for x, e in pairs):
        answers["the input itself"] = [
            [x.to(e.values[0].dtype), *e.values[1:]] for x, e in pairs if x is not None
        ]
    other = session.draw_like(draw, derived(draw.seed, "remembered"))
    if other is not None:
        remembered = session.expect(other)
        session.reference.ask("drop", {"id": other.id})
        answers["a remembered answer"] = [list(e.values) for e in remembered]
    stacked = session.info.world_size == 1 and draw.counts[0] == 1 and _is_stacked(draw)
    if stacked:
        for change in CHANGES:
            try:
                reply = session.reference.ask("expect", {"id": draw.id, "change": change})
            except JudgedError:
                continue  # inputs that the reference does not take, such as a changed mask
            answers[change] = [tensors for _, tensors in reply]
    return {
        name: all(_values.passes(e, got) for e, got in zip(expected, answer, strict=True))
        for name, answer in answers.items()
        if sum(v.numel() for e in expected for v in e.values)
    }


def _is_stacked(draw: Draw) -> bool:
    x = draw.tensors[0][0]
    return x.dim() >= 2 and x.shape[0] >= 2


def _constant(values: torch.Tensor) -> torch.Tensor:
    """The middle of the values everywhere: the constant that is wrong by least."""
    if values.numel() == 0:
        return values
    if values.is_complex():
        return torch.full_like(values, values.mean().item())
    middle = values.to(torch.float64).flatten().nanmedian().to(values.dtype)
    return middle.expand_as(values).contiguous()


def _listed(names: Sequence[str] | frozenset[str] | set[str]) -> str:
    ordered = sorted(names) if isinstance(names, (set, frozenset)) else names
    return ", ".join(repr(name) for name in ordered)


def _broken(reason: str) -> JudgedError:
    return JudgedError(Verdict.PROBLEM_ERROR, f"in the problem, {reason}")
