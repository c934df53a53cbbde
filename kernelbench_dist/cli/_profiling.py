"""The verbs that say why a submission takes the time it takes."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from kernelbench_dist.cli import _verbs
from kernelbench_dist.cli._progress import progress
from kernelbench_dist.cli._verbs import Outcome, new_verb, of_result, options_of, source_of


def add_to(verbs: Any) -> None:
    """Add the verbs."""
    verb = new_verb(
        verbs,
        "profile-kernel",
        "where a submission's time goes: kernels, hardware counters, its class, and what to try",
        "mine.py 47 --sizes large",
        _profile,
    )
    _add_one_run(verb)
    verb.add_argument(
        "--no-counters",
        dest="counters",
        action="store_false",
        help="without hardware counters, which run every kernel some 40 times",
    )
    verb.add_argument(
        "--keep", metavar="FILE", help="write there what Nsight Compute printed, as it is"
    )
    _verbs.add_json(verb)


def _add_one_run(verb: Any) -> None:
    """All options of a verb that runs a submission at one size."""
    _verbs.add_submission(verb)
    _verbs.add_problem(verb)
    _verbs.add_dtype(verb)
    verb.add_argument(
        "--sizes",
        metavar="SIZES",
        help="a name that the problem defines, or values as B=25,K=3 (default: the problem's own)",
    )
    for add in (
        _verbs.add_seed,
        _verbs.add_device,
        _verbs.add_backward,
        _verbs.add_timeout,
        _verbs.add_build_timeout,
        _verbs.add_memory_limit,
    ):
        add(verb)


def _profile(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist.harness import profile_kernel

    source = source_of(arguments)
    with progress() as tell:
        result = profile_kernel(source, arguments.problem, progress=tell, **options_of(arguments))
    if arguments.json or not sys.stdout.isatty():
        return of_result(result, arguments)
    from kernelbench_dist.report import at_terminal

    return Outcome(at_terminal(result), result.verdict.exit_code)
