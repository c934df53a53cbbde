"""The verbs that judge one submission or one problem: the tools, under their own names."""

from __future__ import annotations

import argparse
from typing import Any

from kernelbench_dist.cli import _verbs
from kernelbench_dist.cli._progress import progress
from kernelbench_dist.cli._verbs import Outcome, new_verb, of_result, options_of, source_of


def add_to(verbs: Any) -> None:
    """Add the verbs."""
    verb = new_verb(
        verbs,
        "compile-kernel",
        "load a submission and build what it builds, with the compiler's messages",
        "mine.py level2/47",
        _compile,
    )
    _verbs.add_submission(verb)
    _verbs.add_problem(verb)
    for add in (
        _verbs.add_device,
        _verbs.add_ranks,
        _verbs.add_timeout,
        _verbs.add_build_timeout,
        _verbs.add_json,
    ):
        add(verb)

    verb = new_verb(
        verbs,
        "run-correctness",
        "compare a submission's answers with the reference in float64",
        "mine.py 47 --sizes tiny --sizes B=25,K=3 --dtype bfloat16",
        _correctness,
    )
    _verbs.add_judging(verb)

    verb = new_verb(
        verbs,
        "static-check",
        "read a submission, without running it, for what no honest kernel does",
        "mine.py",
        _static,
    )
    _verbs.add_submission(verb)
    _verbs.add_problem(verb, nargs="?")
    _verbs.add_json(verb)

    verb = new_verb(
        verbs,
        "submit-kernel",
        "judge a submission whole: static check, build, correctness, time, memory and launches",
        "mine.py 47 --sizes large --json > verdict.json",
        _submit,
    )
    _verbs.add_judging(verb)
    _verbs.add_static(verb)
    _verbs.add_rounds(verb)

    verb = new_verb(
        verbs,
        "check-problem",
        "judge a problem: whether it runs on several draws, and which trivial answers pass for it",
        "my_problem.py --sizes all",
        _problem,
    )
    _verbs.add_problem(verb)
    for add in (
        _verbs.add_dtype,
        _verbs.add_sizes,
        _verbs.add_seed,
        _verbs.add_device,
        _verbs.add_ranks,
        _verbs.add_timeout,
        _verbs.add_json,
    ):
        add(verb)


def _compile(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist.harness import compile_kernel

    source = source_of(arguments)
    with progress() as tell:
        result = compile_kernel(source, arguments.problem, progress=tell, **options_of(arguments))
    return of_result(result, arguments)


def _correctness(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist.harness import run_correctness

    source = source_of(arguments)
    with progress() as tell:
        result = run_correctness(source, arguments.problem, progress=tell, **options_of(arguments))
    return of_result(result, arguments)


def _static(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist import problems
    from kernelbench_dist.harness import static_check

    name = None if arguments.problem is None else problems.find(arguments.problem)[0]
    return of_result(static_check(source_of(arguments), name), arguments)


def _submit(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist.harness import submit_kernel

    source = source_of(arguments)
    with progress() as tell:
        result = submit_kernel(source, arguments.problem, progress=tell, **options_of(arguments))
    return of_result(result, arguments)


def _problem(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist.harness import check_problem

    with progress() as tell:
        result = check_problem(arguments.problem, progress=tell, **options_of(arguments))
    return of_result(result, arguments)
