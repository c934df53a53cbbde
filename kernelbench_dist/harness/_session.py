"""One submission, or none, against one problem: the steps that the tools are made of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kernelbench_dist import problems
from kernelbench_dist.harness import _values
from kernelbench_dist.harness._answers import RunAnswer, read
from kernelbench_dist.harness._builds import build_for
from kernelbench_dist.harness._channel import DTYPES
from kernelbench_dist.harness._problem import Draw, ProblemInfo, derived
from kernelbench_dist.harness._process import MachineError, Worker
from kernelbench_dist.harness._results import Build, Options, Trial
from kernelbench_dist.harness._sandbox import FULL_LANDLOCK
from kernelbench_dist.harness._side import JudgedError, Limits, ReferenceSide, Side, Start
from kernelbench_dist.harness._submission import Submission
from kernelbench_dist.harness._verdicts import Verdict

_RUNS = ("poisoned", "plain", "plain")

Progress = Callable[[str], None]
"""takes what is being done, in a few words"""


def silent(_: str) -> None:
    """Progress that nobody watches."""


@dataclass
class Session:
    """Workers for a problem and a submission, and what has been found out so far.

    All methods raise JudgedError as soon as the verdict is known.
    """

    problem: str | Path
    options: Options
    limits: Limits
    submission: Submission | None = None
    builds: list[Build] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    progress: Progress = silent

    def __post_init__(self) -> None:
        self.name, self.path = problems.find(self.problem)
        self.address = problems.address(self.name, self.path)
        self._stack = contextlib.ExitStack()
        self._next_id = 0
        self.info: ProblemInfo
        self.reference: ReferenceSide
        self.candidate: Side
        self.jitter = not self.options.sizes

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # The problem

    def open_problem(self) -> ProblemInfo:
        """Start the reference's workers and load the problem in them."""
        self.progress(f"loading the problem {self.name}")
        world_size = 1
        while True:
            self.reference = self._side(ReferenceSide, "reference", world_size)
            reply, _ = self.reference.ask("load", self._load(self.reference))[0]
            if reply["world_size"] == world_size:
                break
            # Only the file knows how many ranks its program has.
            world_size = reply["world_size"]
            if not 1 <= world_size <= 64:
                raise JudgedError(
                    Verdict.PROBLEM_ERROR, f"WORLD_SIZE is {world_size}; 1 to 64 is accepted"
                )
            self.reference.close()
        self.info = ProblemInfo(
            name=reply["name"],
            path=Path(reply["path"]),
            sha256=reply["sha256"],
            constants=reply["constants"],
            sizes=reply["sizes"],
            varies=tuple(reply["varies"]),
            right_trivial_answers=frozenset(reply["right_trivial_answers"]),
            backward=reply["backward"],
            deterministic=reply["deterministic"],
            world_size=world_size,
        )
        self.options = self.options.model_copy(update={"world_size": world_size})
        return self.info

    def construct_reference(self, seed: int, sizes: Mapping[str, int]) -> Any:
        """Build Model on every rank, with the same parameters; returns its arguments.

        Sizes that are not given are the problem's own.
        """
        self.constructed_with = seed, dict(sizes)
        self._constructed = self.reference.ask(
            "construct", {"seed": seed, "sizes": dict(sizes)}, step="Model(...)"
        )
        return self._constructed[0][0]["args"]

    def draw(self, seed: int, *, jitter: bool | None = None, values: str = "normal") -> Draw:
        """Inputs from a seed, on every rank its own. values: one of `_draws.VALUES`."""
        new_id = self.new_id()
        seeds = [derived(seed, f"rank {r}") for r in range(self.info.world_size)]
        replies = self.reference.ask(
            "draw",
            {
                "id": new_id,
                "sizes_seed": derived(seed, "sizes"),
                "jitter": self.jitter if jitter is None else jitter,
                "values": values,
            },
            each=[{"seed": s} for s in seeds],
            step="get_inputs()",
        )
        return Draw(
            new_id,
            seed,
            [reply["inputs"] for reply, _ in replies],
            [reply["count"] for reply, _ in replies],
            [tensors for _, tensors in replies],
        )

    def draw_many(self, like: Draw, seeds: Sequence[int], *, jitter: bool) -> list[Draw] | None:
        """Draws of the shapes of one that the reference keeps; it keeps none of these.

        None where many seeds do not give them.
        """
        ranks = range(self.info.world_size)
        replies = self.reference.ask(
            "draw_many",
            {
                "like": like.id,
                "sizes_seeds": [derived(s, "sizes") for s in seeds],
                "jitter": jitter,
            },
            each=[{"seeds": [derived(s, f"rank {r}") for s in seeds]} for r in ranks],
            step="get_inputs()",
        )
        if not all(reply["found"] for reply, _ in replies):
            return None
        draws = []
        for k, seed in enumerate(seeds):
            tensors = [
                every[k * len(own) : (k + 1) * len(own)]
                for (_, every), own in zip(replies, like.tensors, strict=True)
            ]
            draws.append(Draw(self.new_id(), seed, like.packed, like.counts, tensors))
        return draws

    def draw_like(self, like: Draw, seed: int) -> Draw | None:
        """Another draw of the same shapes, which the reference keeps; None as for draw_many."""
        draws = self.draw_many(like, [seed], jitter=self.jitter)
        if draws is None:
            return None
        self.put_reference(draws[0])
        return draws[0]

    def expect(self, draw: Draw) -> list[_values.Expected]:
        """The exact outputs for a draw, on every rank."""
        result = []
        for reply, tensors in self.reference.ask("expect", {"id": draw.id}, step="forward()"):
            count = len(tensors) // 2
            result.append(
                _values.Expected(
                    names=tuple(reply["names"]),
                    dtypes=tuple(DTYPES[d] for d in reply["dtypes"]),
                    values=tuple(tensors[:count]),
                    bounds=tuple(tensors[count:]),
                )
            )
        return result

    # The submission

    def open_submission(self, start: Start = Worker) -> None:
        """Start the submission's workers, load the file, and build what it builds."""
        assert self.submission is not None
        self.progress("loading the submission")
        self.candidate = self._side(Side, "submission", self.info.world_size, start)
        if self.candidate.landlock < FULL_LANDLOCK:
            self._note(
                f"Landlock {self.candidate.landlock} (of {FULL_LANDLOCK}): the submission's "
                "process was not fully confined, see docs/harness.md"
            )
        name = Path(self.submission.name).stem if self.submission.name != "<source>" else ""
        stem = name if name.isidentifier() else "submission"
        message = {**self._load(self.candidate), "text": self.submission.text}
        # Another name than any module's, so that it hides none.
        message["file"] = f"{stem}_{self.submission.sha256[:8]}.py"
        self.candidate.ask("load", message, step="the file")

    def restart_submission(self, start: Start = Worker) -> None:
        """A fresh process for the submission; start: what makes it."""
        self.candidate.close()
        self.open_submission(start)

    def construct_submission(self) -> bool:
        """Build ModelNew with the arguments and the parameters of the reference as it is now.

        Returns whether it takes no arguments, and so runs at its own sizes only.
        """
        each = [reply for reply, _ in self._constructed]
        replies = self.candidate.ask(
            "construct",
            each=[{k: r[k] for k in ("args", "state", "parameters")} for r in each],
            tensors=[tensors for _, tensors in self._constructed],
            step="ModelNew(...)",
        )
        fixed = replies[0][0].get("fixed_sizes") is True
        if fixed:
            self._note("ModelNew takes no arguments: it runs at the sizes that it holds itself")
        return fixed

    def put(self, draw: Draw, *, layout: str = "contiguous") -> None:
        """Hand a draw to the submission."""
        self.put_to(self.candidate, draw, layout)

    def put_reference(self, draw: Draw) -> None:
        """Hand the reference a draw that it has made and not kept."""
        self.put_to(self.reference, draw)

    def new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def trial(self, seed: int, sizes: Mapping[str, int]) -> Trial:
        """One draw, judged, then another of the same shapes, by the same ModelNew.

        What a module keeps from its first inputs is wrong for the second. The seed is that of the
        first. Raises JudgedError only where the submission did not run.
        """
        self.construct_reference(seed, sizes)
        draw = self.draw(seed)
        self.construct_submission()
        first = self.judge_draw(draw, sizes)
        other = self.draw_like(draw, derived(seed, "other")) if first.passed else None
        if other is None:
            return first
        second = self.judge_draw(other, sizes)
        if second.passed:
            return first
        reason = f"on other inputs, after the first were right: {second.reason}"
        return second.model_copy(update={"seed": seed, "reason": reason})

    def judge_draw(
        self, draw: Draw, sizes: Mapping[str, int], *, layout: str = "contiguous"
    ) -> Trial:
        """Run the submission on a draw and compare. It is put, and dropped in the end."""
        self.put(draw, layout=layout)
        expected = self.expect(draw)

        def trial(fault: _values.Fault | None, **found: Any) -> Trial:
            return Trial(
                seed=draw.seed,
                sizes=dict(sizes),
                shapes=draw.shapes(),
                verdict=fault.verdict if fault else Verdict.PASSED,
                reason=fault.reason if fault else "it agrees with the reference",
                **found,
            )

        runs: list[list[list[torch.Tensor]]] = []
        for mode in _RUNS:
            got = self._run(draw, mode, expected)
            if isinstance(got, _values.Fault):
                return trial(got)
            runs.append(got)
        unchanged = self.candidate.ask("check", {"id": draw.id})
        self.candidate.ask("drop", {"id": draw.id})
        if not all(reply.get("unchanged") is True for reply, _ in unchanged):
            return trial(
                _values.Fault(
                    Verdict.INPUT_MUTATED, "its inputs, or the bytes beside them, have changed"
                )
            )
        outputs, fault = self._compare(runs, expected)
        equal = all(_values.same_bits(a, b) for a, b in zip(runs[1], runs[2], strict=True))
        if fault is None and not equal and self.info.deterministic:
            fault = _values.Fault(
                Verdict.NONDETERMINISTIC,
                "two runs on the same inputs differ in some bits, and the problem allows none",
            )
        return trial(fault, bitwise_equal=equal, outputs=tuple(outputs))

    def put_to(self, side: Side, draw: Draw, layout: str = "contiguous") -> None:
        side.ask(
            "put",
            {"id": draw.id, "layout": layout},
            draw.tensors,
            each=[
                {"inputs": packed, "count": count}
                for packed, count in zip(draw.packed, draw.counts, strict=True)
            ],
            step="taking its inputs",
        )

    def _run(
        self, draw: Draw, mode: str, expected: Sequence[_values.Expected]
    ) -> list[list[torch.Tensor]] | _values.Fault:
        """One run on all ranks: the outputs of each, or what is wrong with their kind."""
        each = [
            {
                "most_bytes": e.most_bytes(),
                "largest_output_bytes": max(e.sizes_bytes(), default=0),
            }
            for e in expected
        ]
        replies = self.candidate.ask(
            "run",
            {"id": draw.id, "mode": mode},
            each=each,
            most_bytes=max(e.most_bytes() for e in expected),
            step="forward()",
        )
        device = torch.device(self.options.device).type
        for rank, ((reply, tensors), wanted) in enumerate(zip(replies, expected, strict=True)):
            answer = read(RunAnswer, reply)
            fault = _values.wrong_kind(wanted, answer, device)
            if fault is None and not wanted.fits(tensors):
                fault = _values.Fault(
                    Verdict.INCORRECT_SHAPE, "the bytes that came back are not its outputs"
                )
            if fault is not None:
                on_rank = f"rank {rank}: " if self.info.world_size > 1 else ""
                return _values.Fault(fault.verdict, on_rank + fault.reason)
            if answer.new_threads > 0:
                self._note(f"forward() left {answer.new_threads} thread(s) running")
        return [tensors for _, tensors in replies]

    def _compare(
        self, runs: Sequence[Sequence[Sequence[torch.Tensor]]], expected: Sequence[_values.Expected]
    ) -> tuple[list[Any], _values.Fault | None]:
        """All runs against the exact values: the outputs of the first wrong run, or the first."""
        shown: list[Any] = []
        first: _values.Fault | None = None
        for mode, run in zip(_RUNS, runs, strict=True):
            found = [_values.compare(e, run[r], r) for r, e in enumerate(expected)]
            fault = next((f for _, f in found if f is not None), None)
            if not shown or (fault and first is None):
                shown = _values.with_map([outputs for outputs, _ in found], expected, run)
            if fault and first is None:
                first = fault
                if mode == "poisoned" and fault.verdict is Verdict.NOT_FINITE:
                    said = f"{fault.reason}; new memory held NaN in this run"
                    return shown, _values.Fault(fault.verdict, said)
        noisy = first is not None and any(
            _values.differ_beyond(e, a, b)
            for e, a, b in zip(expected, runs[1], runs[2], strict=True)
        )
        if noisy and first is not None:
            first = _values.Fault(
                Verdict.NONDETERMINISTIC,
                f"two runs on the same inputs differ by more than rounding; {first.reason}",
            )
        return shown, first

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _side(self, kind: type[Any], name: str, world_size: int, start: Start = Worker) -> Any:
        where = torch.device(self.options.device)
        if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
            raise JudgedError(
                Verdict.ENVIRONMENT_ERROR,
                f"device is {where}, and torch sees {torch.cuda.device_count()} CUDA device(s)",
            )
        try:
            side = kind(
                name,
                device=self.options.device,
                dtype=self.options.dtype,
                backward=self.options.backward,
                world_size=world_size,
                ranks=self.options.ranks,
                limits=self.limits,
                build=self._build if name == "submission" else None,
                start=start,
            )
        except MachineError as error:
            raise JudgedError(Verdict.ENVIRONMENT_ERROR, str(error)) from error
        return self._stack.enter_context(side)

    def _load(self, side: Side) -> dict[str, Any]:
        return {"problem": self.address, "rendezvous": side.rendezvous}

    def _build(self, message: dict[str, Any]) -> dict[str, Any]:
        """Build what a worker of the submission asks for; every rank asks for the same."""
        return build_for(message, self.builds, self.limits.build_s, self.progress)
