"""Progress on stderr: a line that changes at a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kernelbench_dist.cli._verbs import PROGRAM

_EVERY_S = 5.0


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A function that takes what is being done, in a few words."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.text import Text

    from kernelbench_dist.report import printable

    with Console(stderr=True).status("") as status:
        # Text, because brackets in a submission's names are no markup.
        yield lambda doing: status.update(Text(printable(doing)))


class Lines:
    """Prints a line for each step, and of "step: detail" one in five seconds while it is on."""

    def __init__(self) -> None:
        self._step: str | None = None
        self._last = 0.0

    def __call__(self, doing: str) -> None:
        from kernelbench_dist.report import printable

        step, now = doing.partition(":")[0], time.monotonic()
        if step != self._step or now - self._last >= _EVERY_S:
            print(f"{PROGRAM}: {printable(doing)}", file=sys.stderr, flush=True)
            self._step, self._last = step, now
