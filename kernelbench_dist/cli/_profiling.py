"""The verbs that say why a submission takes the time it takes."""

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
        "profile-kernel",
        "where a submission's time goes: kernels, hardware counters, its class, and what to try",
        "mine.py 47 --sizes large",
        _profile,
    )
    _add_one_run(verb)
    _verbs.add_memory_limit(verb)
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

    verb = new_verb(
        verbs,
        "sanitize",
        "run one call under compute-sanitizer: memcheck, racecheck, initcheck and synccheck",
        "mine.py 47 --tool memcheck",
        _sanitize,
    )
    _add_one_run(verb, timeout_s=300.0)
    verb.add_argument(
        "--tool",
        dest="tools",
        action="append",
        metavar="NAME",
        help="memcheck, racecheck, initcheck or synccheck; may be repeated (default: all)",
    )
    _verbs.add_json(verb)

    verb = new_verb(
        verbs,
        "disassemble",
        "the machine code of what a submission builds: registers, spills, widths of the loads",
        "mine.py 47",
        _disassemble,
    )
    _verbs.add_submission(verb)
    _verbs.add_problem(verb)
    for add in (_verbs.add_device, _verbs.add_timeout, _verbs.add_build_timeout, _verbs.add_json):
        add(verb)

    verb = new_verb(
        verbs, "gpu-specs", "a GPU's peaks, by its datasheet and as measured on it", "", _specs
    )
    verb.add_argument("--device", metavar="NAME", help="cuda or cuda:N (default: the current GPU)")
    _verbs.add_json(verb)


def _add_one_run(verb: Any, timeout_s: float = 60.0) -> None:
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
        _verbs.add_build_timeout,
    ):
        add(verb)
    _verbs.add_timeout(verb, timeout_s)


def _profile(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist.harness import profile_kernel

    source = source_of(arguments)
    with progress() as tell:
        result = profile_kernel(source, arguments.problem, progress=tell, **options_of(arguments))
    return of_result(result, arguments)


def _sanitize(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist.harness import sanitize

    source = source_of(arguments)
    with progress() as tell:
        result = sanitize(source, arguments.problem, progress=tell, **options_of(arguments))
    return of_result(result, arguments)


def _disassemble(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist.harness import disassemble

    source = source_of(arguments)
    with progress() as tell:
        result = disassemble(source, arguments.problem, progress=tell, **options_of(arguments))
    return of_result(result, arguments)


def _specs(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist.harness import get_gpu_specs

    return of_result(get_gpu_specs(arguments.device), arguments)
