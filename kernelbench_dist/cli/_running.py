"""The verbs that judge many times (fuzz, sweep), again (replay), or on request (mcp)."""

from __future__ import annotations

import argparse
from typing import Any

from kernelbench_dist.cli import _verbs
from kernelbench_dist.cli._progress import progress
from kernelbench_dist.cli._verbs import (
    LacksError,
    Outcome,
    new_verb,
    of_result,
    options_of,
    source_of,
)


def add_to(verbs: Any) -> None:
    """Add the verbs."""
    _add_fuzz(verbs)
    _add_replay(verbs)
    _add_sweep(verbs)
    verb = new_verb(
        verbs,
        "mcp",
        "serve the tools to an MCP client, over stdin and stdout",
        "--trail trail.jsonl",
        _mcp,
    )
    verb.add_argument(
        "--trail", metavar="FILE", help="append one JSON line there for each call of a tool"
    )
    verb.add_argument(
        "--problem",
        metavar="PROBLEM",
        help="what calls are about that name no problem: a name, or a file, which a client cannot "
        "name itself",
    )


def _add_fuzz(verbs: Any) -> None:
    verb = new_verb(
        verbs,
        "fuzz",
        "look for the smallest case at which a submission is wrong",
        "mine.py 47 --time-limit 30",
        _fuzz,
    )
    _verbs.add_submission(verb)
    _verbs.add_problem(verb)
    verb.add_argument(
        "--examples",
        type=int,
        default=200,
        metavar="N",
        help="cases to draw; those of shrinking come on top (default: %(default)s)",
    )
    verb.add_argument(
        "--time-limit",
        dest="time_limit_s",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="for all cases together (default: %(default)g)",
    )
    verb.add_argument(
        "--values",
        action="append",
        metavar="KIND",
        help="normal, ties, zeros, large, tiny, inf, nan or limits; may be repeated (default: all)",
    )
    verb.add_argument(
        "--layouts",
        action="append",
        metavar="KIND",
        help="contiguous, transposed, strided or offset; may be repeated (default: all)",
    )
    _verbs.add_dtype(verb)
    _verbs.add_seed(verb, of="the search")
    _verbs.add_device(verb)
    _verbs.add_backward(verb)
    _verbs.add_ranks(verb)
    _verbs.add_timeout(verb, default=10.0)
    _add_store(verb)
    verb.add_argument(
        "--snippet",
        action="store_true",
        help="print the program that shows the failure, too, with torch alone",
    )
    _verbs.add_json(verb)


def _add_replay(verbs: Any) -> None:
    verb = new_verb(
        verbs,
        "replay",
        "run a failure that fuzz has stored again",
        "3f2a --submission mended.py",
        _replay,
    )
    verb.add_argument(
        "failure", metavar="FILE|ID", help="the file that fuzz stored, or the beginning of its id"
    )
    verb.add_argument(
        "--submission",
        metavar="SUBMISSION",
        help="another submission, - for stdin (default: the one that failed, as it was)",
    )
    _add_store(verb)
    _verbs.add_json(verb)


def _add_sweep(verbs: Any) -> None:
    verb = new_verb(
        verbs,
        "sweep",
        "judge many submissions, and go on from the log of a sweep that was stopped",
        "problems/ submissions/ --jobs 4 --log sweep.jsonl",
        _sweep,
    )
    verb.add_argument(
        "problems", metavar="PROBLEMS", help="a folder of problem files, one file, or a name"
    )
    verb.add_argument(
        "submissions",
        metavar="SUBMISSIONS",
        nargs="+",
        help="folders or files; each belongs to the problem that its PROBLEM or its folder names",
    )
    verb.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="judged at once; time is measured one at a time on a device (default: one for two "
        "CPUs, 8 at most)",
    )
    verb.add_argument(
        "--log",
        default="sweep.jsonl",
        metavar="FILE",
        help="where each verdict goes; what has one there is not judged again (default: "
        "%(default)s)",
    )
    verb.add_argument(
        "--executor",
        default="local",
        metavar="NAME",
        help="local, or ray for the machines of a Ray cluster (default: %(default)s)",
    )
    verb.add_argument(
        "--retries",
        type=int,
        default=2,
        metavar="N",
        help="of what this machine could not judge (default: %(default)s)",
    )
    verb.add_argument(
        "--no-static",
        dest="static",
        action="store_false",
        help="do not reject for what the static check finds",
    )
    verb.add_argument(
        "--no-timing",
        dest="timing",
        action="store_false",
        help="judge correctness alone: no time, memory or launches",
    )
    for add in (
        _verbs.add_dtype,
        _verbs.add_sizes,
        _verbs.add_trials,
        _verbs.add_seed,
        _verbs.add_device,
        _verbs.add_ranks,
        _verbs.add_timeout,
        _verbs.add_json,
    ):
        add(verb)


def _add_store(verb: Any) -> None:
    verb.add_argument(
        "--store",
        metavar="FOLDER",
        help="of the failures (default: $KERNELBENCH_DIST_STATE/failures, or "
        "kernelbench_dist/failures in $XDG_STATE_HOME or ~/.local/state)",
    )


def _fuzz(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist.harness import fuzz

    source = source_of(arguments)
    with progress() as tell:
        result = fuzz(source, arguments.problem, progress=tell, **options_of(arguments))
    outcome = of_result(result, arguments)
    if arguments.snippet and result.snippet and not arguments.json:
        return Outcome(f"{outcome.text}\n\n{result.snippet}", outcome.code)
    return outcome


def _replay(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist.harness import replay

    source = None if arguments.submission is None else source_of(arguments)
    with progress() as tell:
        result = replay(arguments.failure, source=source, store=arguments.store, progress=tell)
    return of_result(result, arguments)


def _sweep(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist.harness.sweep import sweep

    try:
        result = sweep(**options_of(arguments))
    except RuntimeError as error:  # there is no Ray, or it has no GPU
        if arguments.executor != "ray":
            raise
        raise LacksError(str(error)) from error
    text = result.to_json(indent=2) if arguments.json else str(result)
    return Outcome(text, result.exit_code)


def _mcp(arguments: argparse.Namespace) -> Outcome:
    try:
        from kernelbench_dist.harness.mcp import serve

        serve(arguments.trail, arguments.problem)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "mcp":
            raise
        raise LacksError(str(error)) from None
    return Outcome()
