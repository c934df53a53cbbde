"""The two sides that the judge drives: the reference's workers and the submission's."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernelbench_dist.harness._channel import ChannelError
from kernelbench_dist.harness._process import Worker, WorkerEndedError, soon
from kernelbench_dist.harness._ranks import RanksKind, Reply, pack, unpack
from kernelbench_dist.harness._verdicts import Verdict

Build = Callable[[dict[str, Any]], dict[str, Any]]
Start = Callable[..., Worker]

_START_S = 300.0
_MOST_BUILDS = 100


class JudgedError(Exception):
    """The judgement has come to its end: a verdict other than PASSED, and the reason.

    `who`: of several candidates, the one whose judgement it is; None where nobody has said.
    """

    def __init__(self, verdict: Verdict, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.verdict, self.reason, self.detail = verdict, reason, detail
        self.who: str | None = None


@dataclass(frozen=True)
class Limits:
    """Of one step (a load, a call), of a worker's memory, and of one build."""

    step_s: float = 60.0
    memory_bytes: int | None = None
    build_s: float = 600.0

    @property
    def all_steps_s(self) -> float:
        """Of all steps of one side together: each just within its limit would take for ever."""
        return 30 * self.step_s


class Side:
    """All workers of one side: one a rank with "gloo", one with all ranks with "virtual".

    build: builds an extension on behalf of a worker that asks for it; None where none may ask.
    start: makes a worker, as `Worker` itself does.
    """

    def __init__(
        self,
        name: str,
        *,
        device: str,
        dtype: str | None,
        backward: bool,
        world_size: int,
        ranks: RanksKind,
        limits: Limits,
        build: Build | None = None,
        start: Start = Worker,
    ) -> None:
        self.name = name
        self.world_size = world_size
        self.is_virtual = ranks == "virtual" and world_size > 1
        self.limits = limits
        self.landlock = 0
        self._build = build
        self._spent_s = self._built_s = 0.0
        self._builds = 0
        self._stack = contextlib.ExitStack()
        self.rendezvous: str | None = None
        try:
            if world_size > 1 and not self.is_virtual:
                folder = self._stack.enter_context(tempfile.TemporaryDirectory())
                os.chmod(folder, 0o700)
                self.rendezvous = os.path.join(folder, "group")
            self.workers = [
                self._stack.enter_context(
                    start(
                        memory_limit_bytes=limits.memory_bytes,
                        # The group's store is a file beside the worker's folder.
                        sandbox=name == "submission" and self.rendezvous is None,
                    )
                )
                for _ in range(1 if self.is_virtual else world_size)
            ]
            first = {
                "side": name,
                "device": device,
                "dtype": dtype,
                "backward": backward,
                "ranks": ranks,
                "world_size": world_size,
            }
            for rank, worker in enumerate(self.workers):
                worker.send({**first, "rank": rank})
            for worker in self.workers:
                message, _ = worker.receive(deadline=soon(_START_S))
                self.landlock = message["landlock"]
        except (WorkerEndedError, ChannelError, KeyError) as error:
            self._stack.close()
            raise JudgedError(
                Verdict.ENVIRONMENT_ERROR, f"a worker does not start: {error}"
            ) from error
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all workers, and wait until they are gone."""
        self._stack.close()

    def ask(
        self,
        do: str,
        message: dict[str, Any] | None = None,
        tensors: Sequence[Sequence[torch.Tensor]] | None = None,
        *,
        each: Sequence[dict[str, Any]] | None = None,
        most_bytes: int = 1 << 62,
        step: str | None = None,
    ) -> list[Reply]:
        """The answers of all ranks to one request.

        message: for every rank; each: more of it for each rank. tensors: for each rank.
        most_bytes: that each rank may answer with.
        Raises JudgedError where a rank fails, whichever way.
        """
        step = step or do
        base = {**(message or {}), "do": do}
        parts: list[Reply] = [
            (dict(each[rank]) if each else {}, list(tensors[rank]) if tensors else [])
            for rank in range(self.world_size)
        ]
        start, built = time.monotonic(), self._built_s
        try:
            if self.is_virtual:
                most_bytes, parts = most_bytes * self.world_size, [pack(parts)]
            for worker, (own, sent) in zip(self.workers, parts, strict=True):
                worker.send({**base, **own}, sent, deadline=soon(self.limits.step_s))
            answers = [self._answer(w, most_bytes, step) for w in self.workers]
            return unpack(*answers[0], self.world_size) if self.is_virtual else answers
        except WorkerEndedError as error:
            raise self._ended(error, step) from None
        except ChannelError as error:
            raise JudgedError(
                Verdict.RUNTIME_ERROR, f"{step}: what came back is no answer: {error}"
            ) from None
        finally:
            self._spent_s += time.monotonic() - start - (self._built_s - built)

    def _answer(self, worker: Worker, most_bytes: int, step: str) -> Reply:
        deadline = soon(min(self.limits.step_s, self.limits.all_steps_s - self._spent_s))
        while True:
            message, tensors = worker.receive(deadline=deadline, most_bytes=most_bytes)
            if "build" in message and self._build is not None:
                # What the judge builds is not the worker's time.
                start = time.monotonic()
                answer = self._build(message["build"])
                seconds = time.monotonic() - start
                self._built_s += seconds
                deadline += seconds
                self._builds += 1
                if self._builds > _MOST_BUILDS * self.world_size:
                    raise JudgedError(
                        Verdict.RUNTIME_ERROR, f"{step} asked for more than {_MOST_BUILDS} builds"
                    )
                worker.send(answer, deadline=deadline)
            elif "error" in message:
                raise self._raised(message["error"], step)
            elif message.get("ok") is True:
                return message, tensors
            else:
                raise ChannelError(f"unexpected fields {sorted(map(str, message))[:5]}")

    def _ended(self, error: WorkerEndedError, step: str) -> JudgedError:
        verdict = {"time": Verdict.TIMEOUT, "memory": Verdict.OUT_OF_MEMORY}.get(
            error.why, Verdict.RUNTIME_ERROR
        )
        reason = f"{step}: {error}"
        if error.why == "time":
            reason = f"{step} did not finish within {self.limits.step_s:g} s"
            if self._spent_s + self.limits.step_s > self.limits.all_steps_s:
                reason = f"{step}: all steps together took over {self.limits.all_steps_s:g} s"
        return JudgedError(verdict, reason, error.output)

    def _raised(self, error: dict[str, Any], step: str) -> JudgedError:
        kind, text = str(error.get("type")), str(error.get("message"))
        first_line = next(iter(text.splitlines()), "")[:500]
        place = f" ({error['at']})" if error.get("at") else ""
        if self.world_size > 1 and type(error.get("rank")) is int:
            place += f" on rank {error['rank']}"
        verdict = Verdict.RUNTIME_ERROR
        if kind == "ParametersDifferError":
            return JudgedError(Verdict.PARAMETERS_DIFFER, first_line)
        if kind in ("SyntaxError", "IndentationError", "TabError", "FlagError"):
            verdict = Verdict.COMPILE_ERROR
        elif kind == "BuildFailedError":
            return JudgedError(Verdict.COMPILE_ERROR, first_line, text)
        elif kind in ("DeadlockError", "MismatchError"):
            # A line for each rank says what it waits in.
            rest = "; ".join(line.strip() for line in text.splitlines()[1:])
            said = f"{step}: {first_line.rstrip(':')}: {rest}"
            return JudgedError(verdict, said[:1000], text)
        elif error.get("memory"):
            verdict = Verdict.OUT_OF_MEMORY
        said = f"{kind}: {first_line}" if first_line else kind
        return JudgedError(verdict, f"{step} raised {said}{place}", str(error.get("traceback")))


class ReferenceSide(Side):
    """The reference's workers: whatever goes wrong in them is the problem's fault."""

    def ask(self, *args: Any, **options: Any) -> list[Reply]:
        try:
            return super().ask(*args, **options)
        except JudgedError as error:
            raise JudgedError(
                Verdict.PROBLEM_ERROR, f"in the problem, {error.reason}", error.detail
            ) from None
