"""The program `kernelbench-dist`, also `python -m kernelbench_dist`.

Exit codes: 0 passed (or done), 1 judged and failed, 2 wrong use, 3 the machine's fault or the
judge's own, 130 interrupted. What was asked for goes to stdout, and all else to stderr.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from collections.abc import Sequence

from kernelbench_dist import __version__
from kernelbench_dist.cli import (
    _judging,
    _plan,
    _problems,
    _profiling,
    _reporting,
    _run,
    _running,
    _suite,
)
from kernelbench_dist.cli._verbs import PROGRAM, LacksError, Outcome

__all__ = ["main"]

_WRONG_USE, _ENVIRONMENT, _INTERRUPTED = 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code; wrong options raise argparse's SystemExit(2)."""
    arguments = _parser().parse_args(argv)
    try:
        outcome: Outcome = arguments.run(arguments)
    except KeyboardInterrupt as stopped:  # a sweep's says how far it came
        _say(f"interrupted: {stopped}" if str(stopped) else "interrupted")
        return _INTERRUPTED
    except (ValueError, FileNotFoundError) as error:  # a ProblemError is a ValueError
        _say(f"error: {error}")
        return _WRONG_USE
    except (OSError, LacksError) as error:
        _say(f"error: {error}")
        return _ENVIRONMENT
    except Exception:
        traceback.print_exc()
        _say("error: the judge itself failed, as the traceback says; nothing was judged")
        return _ENVIRONMENT
    _print(outcome.text)
    return outcome.code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Judges kernels for programs of several ranks, emulated on one device.",
        epilog="Exit codes: 0 passed, 1 judged and failed, 2 wrong use, 3 environment.",
    )
    parser.add_argument("--version", action="version", version=f"kernelbench_dist {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for module in (
        _judging,
        _profiling,
        _running,
        _reporting,
        _run,
        _suite,
        _problems,
        _plan,
    ):
        module.add_to(verbs)
    return parser


def _print(text: str) -> None:
    if not text:
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name may not fit the terminal's set
    try:
        print(text.rstrip("\n"))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str) -> None:
    print(f"{PROGRAM}: {' '.join(text.split())}", file=sys.stderr)
