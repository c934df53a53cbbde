"""What is seen of a sweep while it runs: a bar at a terminal, a line for each verdict in a pipe."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.harness.sweep._result import short


class Shown:
    """Progress on stderr. A context manager; with `show=False` it shows nothing."""

    def __init__(self, total: int, done: int, *, show: bool) -> None:
        self.total, self.done = total, done
        self._show = show
        self._counts: Counter[Verdict] = Counter()
        self._bar: Progress | None = None
        if show and sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("sweep", total=total, completed=done)

    def __enter__(self) -> Shown:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def note(self, text: str) -> None:
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False)
        elif self._show:
            print(text, file=sys.stderr, flush=True)

    def verdict(self, verdict: Verdict, problem: str, submission: str, seconds: float) -> None:
        """One more is finished."""
        self.done += 1
        self._counts[verdict] += 1
        name = Path(submission).name
        if self._bar:
            counts = ", ".join(f"{n} {v}" for v, n in self._counts.most_common(3))
            text = escape(f"{counts}; {short(problem)} {name}")
            self._bar.update(self._task, completed=self.done, description=text)
        else:
            line = f"[{self.done}/{self.total}] {verdict} {short(problem)} {name} {seconds:.1f} s"
            self.note(line)

    def attempt(self, problem: str, submission: str, reason: str, *, again: bool) -> None:
        """One could not be judged."""
        then = "it will be tried again" if again else "it is left"
        self.note(f"not judged: {short(problem)} {Path(submission).name}: {reason}; {then}")
