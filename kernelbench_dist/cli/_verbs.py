"""What the verbs share: how one is declared, its options, and what it comes to."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelbench_dist.harness._results import Result

PROGRAM = "kernelbench-dist"
_OURS = {"run", "json", "submission", "problem", "snippet"}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Outcome:
    """What goes to stdout, and the exit code."""

    text: str = ""
    code: int = 0


class LacksError(Exception):
    """This machine or installation lacks what the verb needs; the message names the remedy."""


Run = Callable[[argparse.Namespace], Outcome]


def new_verb(verbs: Any, name: str, sentence: str, example: str, run: Run) -> Any:
    """A verb with its sentence, an example of its use, and --json."""
    verb = verbs.add_parser(
        name,
        help=sentence,
        description=sentence[0].upper() + sentence[1:] + ".",
        epilog=f"example: {PROGRAM} {name} {example}".rstrip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.set_defaults(run=run)
    return verb


def of_result(result: Result, arguments: argparse.Namespace) -> Outcome:
    """A result as a report, in colour at a terminal; or with --json as JSON."""
    if arguments.json:
        text = result.to_json(indent=2)
    elif sys.stdout.isatty():
        from kernelbench_dist.report._terminal import for_terminal

        text = for_terminal(result)
    else:
        text = str(result)
    return Outcome(text, result.verdict.exit_code)


def of_value(value: Any, text: str, arguments: argparse.Namespace) -> Outcome:
    """Something that is no result: as text, or with --json a value."""
    return Outcome(json.dumps(value, indent=2, allow_nan=False) if arguments.json else text)


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of a tool: its options' names are theirs."""
    return {key: value for key, value in vars(arguments).items() if key not in _OURS}


def source_of(arguments: argparse.Namespace) -> str:
    """The submission: its path, or its text where it comes through stdin."""
    name: str = arguments.submission
    if name != "-":
        return name
    text = sys.stdin.read()
    # One line alone could be taken for a path.
    return text if "\n" in text else text + "\n"


# Options. The defaults are those of the tools, which say the same in their docstrings.


def add_json(verb: Any) -> None:
    verb.add_argument("--json", action="store_true", help="print one JSON document on stdout")


def add_submission(verb: Any) -> None:
    verb.add_argument(
        "submission",
        metavar="SUBMISSION",
        help="a Python file that defines ModelNew; - reads its text from stdin",
    )


def add_problem(verb: Any, *, nargs: str | None = None) -> None:
    verb.add_argument(
        "problem",
        metavar="PROBLEM",
        nargs=nargs,
        help="a name such as level2/47 or 47 (see `list`), or a problem file; @4 after it "
        "for its form as a torch.distributed program, on 4 ranks",
    )


def add_device(verb: Any) -> None:
    verb.add_argument(
        "--device",
        metavar="NAME",
        help="cpu, cuda or cuda:N (default: the GPU if there is one)",
    )


def add_dtype(verb: Any) -> None:
    verb.add_argument(
        "--dtype",
        metavar="NAME",
        help="float16, bfloat16, float32 or float64, for floating-point inputs and parameters "
        "(default: as the problem makes them)",
    )


def add_sizes(verb: Any) -> None:
    verb.add_argument(
        "--sizes",
        metavar="SIZES",
        action="append",
        help="a name that the problem defines, all, or values as B=25,K=3; may be repeated "
        "(default: as the problem draws them)",
    )


def add_trials(verb: Any, default: int = 5) -> None:
    verb.add_argument(
        "--trials",
        type=int,
        default=default,
        metavar="N",
        help="draws of the inputs for each of the sizes, 1 to 10000 (default: %(default)s)",
    )


def add_seed(verb: Any, of: str = "the first trial") -> None:
    verb.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help=f"of {of}, 0 to 2**62 - 1 (default: one that nobody can guess)",
    )


def add_backward(verb: Any) -> None:
    verb.add_argument(
        "--backward",
        action=argparse.BooleanOptionalAction,
        help="judge gradients of inputs and parameters too (default: as the problem says)",
    )


def add_ranks(verb: Any) -> None:
    verb.add_argument(
        "--ranks",
        default="virtual",
        metavar="KIND",
        help="of a problem of several: virtual, threads of one process on one device, or gloo, "
        "processes (default: %(default)s)",
    )


def add_static(verb: Any) -> None:
    verb.add_argument(
        "--no-static",
        dest="static",
        action="store_false",
        help="report what the static check finds, and do not reject for it",
    )


def add_rounds(verb: Any) -> None:
    """And how long a sample of a round lasts."""
    verb.add_argument(
        "--rounds",
        type=int,
        default=20,
        metavar="N",
        help="of timing, 8 or more (default: %(default)s)",
    )
    verb.add_argument(
        "--min-time-ms",
        type=float,
        default=2.0,
        metavar="MS",
        help="that one sample should last on a GPU (default: %(default)g)",
    )


def add_timeout(verb: Any, default: float = 60.0) -> None:
    verb.add_argument(
        "--timeout",
        dest="timeout_s",
        type=float,
        default=default,
        metavar="SECONDS",
        help="for each step, without what it builds (default: %(default)g)",
    )


def add_build_timeout(verb: Any) -> None:
    verb.add_argument(
        "--build-timeout",
        dest="build_timeout_s",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="for each extension (default: %(default)g)",
    )


def add_memory_limit(verb: Any) -> None:
    verb.add_argument(
        "--memory-limit",
        dest="memory_limit_bytes",
        type=nbytes,
        metavar="BYTES",
        help="of the submission's process, 256M or more; K, M, G and T are powers of 1024 "
        "(default: by the machine's memory)",
    )


def add_judging(verb: Any) -> None:
    """All options of a verb that runs a submission."""
    add_submission(verb)
    add_problem(verb)
    for add in (
        add_dtype,
        add_sizes,
        add_trials,
        add_seed,
        add_device,
        add_backward,
        add_ranks,
        add_timeout,
        add_build_timeout,
        add_memory_limit,
        add_json,
    ):
        add(verb)


def one_or_more(text: str, accepted: str = "a whole number of 1 or more") -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; {accepted} is accepted")
    return int(text)


def nbytes(text: str) -> int:
    """
    >>> nbytes("512M"), nbytes("1.5G"), nbytes("1048576")
    (536870912, 1610612736, 1048576)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise argparse.ArgumentTypeError(
            f"{text!r}; a number of bytes is accepted, with K, M, G or T after it if need be"
        )
    return int(float(match[1]) * _UNITS[match[2].upper()])
