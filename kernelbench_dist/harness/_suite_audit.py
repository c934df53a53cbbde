"""The audit of a problem: all that a file of the suite promises, each promise tried.

It runs the problem's file in this process too, so it is for problems that one trusts.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from kernelbench_dist import problems
from kernelbench_dist.harness import _model, _oracle
from kernelbench_dist.harness._judge import check_problem
from kernelbench_dist.harness._session import Progress, silent
from kernelbench_dist.problems import Problem, _forms, _program
from kernelbench_dist.problems._forms import Case

SECTIONS = ("Formula", "Shapes", "Where used", "Source")
SIZES = ("tiny", "small", "large", "awkward")
# At these sizes a reference costs so little that all is tried; at the others it only runs.
CHEAP = ("tiny", "awkward")
_SEED = 20
_NOT_TRIED = "not tried, since what the file declares is not whole"

Backend = Literal["virtual", "gloo"]


@dataclass(frozen=True)
class Check:
    """One promise: what was tried, at which sizes or on which ranks, and what was found."""

    name: str
    at: str
    passed: bool
    found: str


@dataclass(frozen=True)
class Audit:
    """Every check of one problem, in the order in which they were made."""

    problem: str
    seconds: float
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"schema": "kernelbench_dist.audit/1", "passed": self.passed, **asdict(self)}

    def __str__(self) -> str:
        failed = [check for check in self.checks if not check.passed]
        head = f"{self.problem}: {len(self.checks) - len(failed)} of {len(self.checks)} checks pass"
        lines = [
            f"  {c.name} ({c.at}): {c.found}" if c.at else f"  {c.name}: {c.found}" for c in failed
        ]
        return "\n".join([f"{head}, in {self.seconds:.3g} s", *lines])


def audit_problems(
    named: Sequence[str | Path],
    *,
    short: bool = False,
    draws: int = 50,
    seconds_a_size: float = 20.0,
    world_sizes: Sequence[int] | None = None,
    backends: Sequence[Backend] | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Iterator[Audit]:
    """Try everything that problems of the suite promise; docs/adding_a_problem.md says what.

    Args:
        named: names or files, in the stacked form.
        short: only what takes a second or two a problem: a few draws at the sizes that cost little,
            and two virtual ranks.
        draws: on how many draws a reference runs at each of its sizes. Where these take longer
            than `seconds_a_size`, it is as many as that allows, and the check says how many.
        world_sizes, backends: on which ranks the form for ranks must agree with the stacked one.
            Default: 2 and 4, of "virtual" and of "gloo"; if it is short, 2 of "virtual".
        device: where the references run.
        progress: called with a line on each step.

    Raises:
        ProblemError, FileNotFoundError: there is no such problem, or it is given in another form.
    """
    if draws < 1:
        raise ValueError(f"draws is {draws}; 1 or more is accepted")
    if short:
        draws = min(draws, 3)
    world_sizes = world_sizes or ((2,) if short else (2, 4))
    backends = backends or (("virtual",) if short else ("virtual", "gloo"))
    paths: dict[str, str] = {}
    for problem in named:
        name, path = problems.find(problem)
        if problems.ranks_in(name):
            raise problems.ProblemError(
                f"{name}: an audit tries both forms; give the name without its '@'"
            )
        paths[name] = str(path)
    tell = progress or silent
    # Together, since starting processes takes longer than what they do here.
    agreements: list[tuple[str, dict[str, str | None]]] = []
    for ranks in world_sizes:
        for backend in backends:
            at = f"{ranks} {'virtual ranks' if backend == 'virtual' else f'ranks on {backend}'}"
            tell(f"the forms on {at}")
            agreements.append((at, _disagreements(list(paths.values()), ranks, backend)))
    for name, path in paths.items():
        notes = _Notes(name, tell)
        subject = _Subject(path, torch.device(device))
        if notes.run("loads", "", subject.load):
            _try_stacked(notes, subject, CHEAP if short else SIZES, draws, seconds_a_size)
            if notes.run("has a form for ranks", "", subject.has_a_form_for_ranks):
                for at, faults in agreements:
                    notes.run("has forms that agree", at, _no_fault, faults.get(path, _NOT_TRIED))
        if not short and all(check.passed for check in notes.checks):
            for at in ("", *(f"@{ranks}" for ranks in world_sizes)):
                sizes = None if at else CHEAP
                where = at or " and ".join(CHEAP)
                notes.run("can judge", where, _can_judge, path + at, device, sizes)
        yield Audit(name, time.monotonic() - notes.start, tuple(notes.checks))


def _try_stacked(
    notes: _Notes, subject: _Subject, sizes: Sequence[str], draws: int, seconds: float
) -> None:
    """The checks of the stacked form that need no other process."""
    notes.run("is documented", "", subject.is_documented)
    if not notes.run("declares its sizes", "", subject.declares_sizes):
        return
    for size in sizes:
        if not notes.run("runs", size, subject.runs, size, draws, seconds):
            continue
        notes.run("states its cost", size, subject.states_its_cost, size)
        if size in CHEAP:
            notes.run("needs each input", size, subject.needs_each_input, size)
            notes.run("has a bound that fits", size, subject.bound_fits, size)


class _Notes:
    """The checks of one problem, as they are made."""

    def __init__(self, problem: str, tell: Progress) -> None:
        self.problem, self.tell, self.start = problem, tell, time.monotonic()
        self.checks: list[Check] = []

    def run(self, name: str, at: str, check: Callable[..., str], *args: Any) -> bool:
        self.tell(f"{self.problem}: {name} {at}".rstrip())
        try:
            self.checks.append(Check(name, at, True, check(*args)))
        except _FaultError as fault:
            self.checks.append(Check(name, at, False, str(fault)))
        except (Exception, SystemExit) as error:  # the file's own
            self.checks.append(Check(name, at, False, f"{type(error).__name__}: {error}"))
        return self.checks[-1].passed


def _disagreements(paths: Sequence[str], ranks: int, backend: Backend) -> dict[str, str | None]:
    """Where the forms of each file differ on so many ranks; files without both are absent."""
    cases: dict[str, list[Case]] = {}
    for path in paths:
        with contextlib.suppress(Exception, SystemExit):  # which the checks of the file come upon
            names = vars(problems.load(path).module)
            if _program.fault(names) is None:
                cases[path] = [Case(path, ranks, names["SIZES"][size], _SEED) for size in CHEAP]
    try:
        every = [case for own in cases.values() for case in own]
        found = iter(_forms.disagreements(every, backend)) if every else iter(())
        pairs = {path: [next(found) for _ in own] for path, own in cases.items()}
    except Exception as error:  # one that fails ends the others' ranks too
        if len(paths) == 1:
            return {path: f"{type(error).__name__}: {error}" for path in cases}
        return {p: f for path in cases for p, f in _disagreements([path], ranks, backend).items()}
    return {
        path: next((f"at {size}, {f}" for size, f in zip(CHEAP, own, strict=True) if f), None)
        for path, own in pairs.items()
    }


def _no_fault(fault: str | None) -> str:
    if fault:
        raise _FaultError(fault)
    return f"at {' and '.join(CHEAP)}, in float64"


class _FaultError(Exception):
    """A promise that does not hold."""


def _can_judge(problem: str, device: str, sizes: Sequence[str] | None) -> str:
    result = check_problem(problem, device=device, sizes=sizes)
    if not result.passed:
        raise _FaultError(f"{result.reason}\n{result.detail}".strip())
    right = [name for name, passes in result.trivial_answers.items() if passes]
    return f"right trivial answers: {', '.join(right) or 'none'}"


class _Subject:
    """The problem under audit. Each method is a check: what was found, or a _FaultError."""

    def __init__(self, path: str, device: torch.device) -> None:
        self.path, self.device = path, device
        self.problem: Problem

    def load(self) -> str:
        self.problem = problems.load(self.path)
        return "Model, get_inputs and get_init_inputs are there"

    def is_documented(self) -> str:
        doc = self.problem.module.__doc__ or ""
        lacking = [s for s in SECTIONS if not re.search(rf"^{s}\b.*:$", doc, re.MULTILINE)]
        if lacking:
            raise _FaultError(f"its docstring has no section {', '.join(map(repr, lacking))}")
        if "..." in [line.strip() for line in doc.splitlines()]:
            raise _FaultError("its docstring has a line '...' that is still to be written")
        return "formula, shapes, use and source are there"

    def declares_sizes(self) -> str:
        names = vars(self.problem.module)
        sizes, constants = names.get("SIZES", {}), self.problem.constants
        if tuple(sizes) != SIZES:
            raise _FaultError(
                f"SIZES has {', '.join(sizes) or 'nothing'}; {', '.join(SIZES)} is wanted"
            )
        for size, values in sizes.items():
            for key, value in values.items():
                if type(value) is not int or value < 1:
                    raise _FaultError(f"SIZES[{size!r}] sets {key} to {value!r}; 1 or more wanted")
            if unknown := set(values) - set(constants):
                raise _FaultError(f"SIZES[{size!r}] sets {', '.join(sorted(unknown))}, no size")
            if set(values) != set(sizes["tiny"]):
                raise _FaultError(
                    f"SIZES[{size!r}] sets {', '.join(values)}; SIZES['tiny'] sets "
                    f"{', '.join(sizes['tiny'])}"
                )
        nominal = {name: constants[name] for name in sizes["tiny"]}
        if sizes["tiny"] != nominal:
            raise _FaultError(f"SIZES['tiny'] is {sizes['tiny']}; the constants are {nominal}")
        if unknown := set(names.get("VARIES", ())) - set(constants):
            raise _FaultError(f"VARIES names {', '.join(sorted(unknown))}, which is no size")
        return f"{', '.join(SIZES)}, each of {', '.join(constants)}"

    def runs(self, size: str, draws: int, seconds: float) -> str:
        """On draws at this size, and at the nominal one on sizes that vary too."""
        self._at(size)
        end, done = time.monotonic() + seconds, 0
        while done < draws and (done == 0 or time.monotonic() < end):
            inputs = self._inputs(done, jitter=size == "tiny" and done % 2 == 1)
            outputs = self._run(self._model(done, None), inputs)
            if not outputs:
                raise _FaultError("forward() returns no tensor")
            for i, leaf in enumerate(outputs):
                if leaf.is_floating_point() and not leaf.isfinite().all():
                    raise _FaultError(f"output {i} of draw {done} is not finite")
            done += 1
        return f"{done} of {draws} draws" if done < draws else f"{draws} draws"

    def states_its_cost(self, size: str) -> str:
        """The bytes and FLOPs of get_cost, whole and possible."""
        self._at(size)
        cost = getattr(self.problem.module, "get_cost", None)
        if cost is None:
            raise _FaultError("it defines no get_cost(*inputs)")
        inputs = self._inputs(0)
        model = self._model(0, None)
        nbytes, flops = cost(*inputs)
        if type(nbytes) is not int or type(flops) is not int or nbytes <= 0 or flops < 0:
            raise _FaultError(
                f"get_cost gives {(nbytes, flops)}; bytes above 0 and FLOPs, both ints"
            )
        outputs = self._run(model, inputs)
        tensors = [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
        written = sum(t.numel() * t.element_size() for t in outputs)
        held = written + sum(
            t.numel() * t.element_size() for t in [*tensors, *model.parameters(), *model.buffers()]
        )
        if not written <= nbytes <= held:
            raise _FaultError(
                f"get_cost says that {nbytes} bytes must move; the outputs alone hold {written}, "
                f"and with inputs, parameters and buffers it is {held}"
            )
        return f"{nbytes} bytes, {flops} FLOPs"

    def needs_each_input(self, size: str) -> str:
        """No input whose values do not matter, but for those that INERT names."""
        self._at(size)
        inert = set(getattr(self.problem.module, "INERT", ()))
        model, inputs, others = self._model(0, None), self._inputs(0), self._inputs(1)
        before = self._run(model, inputs)
        names = _program.arguments(self.problem.Model)
        if unknown := inert - set(names):
            raise _FaultError(f"INERT names {', '.join(map(repr, unknown))}, which is no input")
        for i, name in enumerate(names[: len(inputs)]):
            changed = self._run(model, [*inputs[:i], others[i], *inputs[i + 1 :]])
            same = all(torch.equal(a, b) for a, b in zip(before, changed, strict=True))
            if same and name not in inert:
                raise _FaultError(f"{name} does not matter: other values give the same outputs")
            if not same and name in inert:
                raise _FaultError(f"INERT names {name}, and other values give other outputs")
        return ", ".join(names)

    def bound_fits(self, size: str) -> str:
        """float32 is within its bound, and bfloat16 is not: it is neither too tight nor loose."""
        self._at(size)
        inputs = self._inputs(0)
        exact, eager = self._outputs(inputs, torch.float64), self._outputs(inputs, None)
        if not (any(map(_is_float, inputs)) and any(map(_is_float, eager))):
            return "nothing is rounded"
        generator = torch.Generator().manual_seed(_SEED)
        eps = torch.finfo(torch.float32).eps

        def moved() -> list[torch.Tensor]:
            near = [
                _oracle.move(t.to(torch.float64), eps, generator) if _is_float(t) else t
                for t in inputs
            ]
            return self._outputs(near, torch.float64)

        limits = _oracle.bounds(exact, eager, moved)
        narrow = self._outputs(inputs, torch.bfloat16)
        worst = {
            "float32": max(_over(exact, eager, limits)),
            "bfloat16": max(_over(exact, narrow, limits)),
        }
        if worst["float32"] > 1:
            raise _FaultError(f"float32 itself is {worst['float32']:.3g} times the bound away")
        coarse = all(torch.equal(t, t.bfloat16().to(t.dtype)) for t in inputs if _is_float(t))
        if worst["bfloat16"] <= 1 and not coarse:  # else it may be exact in bfloat16, as a maximum
            raise _FaultError("an answer in bfloat16 is within the bound of float32")
        return ", ".join(f"{k} at {v:.3g} of the bound" for k, v in worst.items())

    def has_a_form_for_ranks(self) -> str:
        if fault := _program.fault(vars(self.problem.module)):
            raise _FaultError(fault)
        return f"RankModel, {self.problem.module.OUTPUT}"

    # Running it

    def _at(self, size: str) -> None:
        for name, value in self.problem.module.SIZES[size].items():
            setattr(self.problem.module, name, value)

    def _inputs(self, draw: int, *, jitter: bool = False) -> list[Any]:
        generator = torch.Generator().manual_seed(_SEED + draw)
        return self.problem.get_inputs(generator=generator, jitter=jitter)

    def _model(self, seed: int, dtype: torch.dtype | None) -> torch.nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            args = self.problem.get_init_inputs()
            return _model.build(self.problem.Model, args, self.device, dtype)

    def _outputs(self, inputs: Sequence[Any], dtype: torch.dtype | None) -> list[torch.Tensor]:
        given = [_model.cast(t, dtype) if isinstance(t, torch.Tensor) else t for t in inputs]
        outputs = self._run(self._model(0, dtype), given)
        return [_model.cast(t, torch.float64) for t in outputs] if dtype else outputs

    def _run(self, model: torch.nn.Module, inputs: Sequence[Any]) -> list[torch.Tensor]:
        with torch.no_grad():
            moved = pytree.tree_map_only(torch.Tensor, lambda t: t.to(self.device), list(inputs))
            return list(pytree.tree_leaves(model(*moved)))


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _over(
    exact: Sequence[torch.Tensor], got: Sequence[torch.Tensor], limits: Sequence[torch.Tensor]
) -> Iterator[float]:
    """Of each rounded output, the largest error in units of its bound."""
    for right, mine, limit in zip(exact, got, limits, strict=True):
        if right.is_floating_point() and right.numel():
            error = (mine.to(torch.float64) - right).abs()
            yield float((error / limit.clamp(min=1e-300)).max())
