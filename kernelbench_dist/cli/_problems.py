"""The verbs for who writes problems: a file to start from, and the audit."""

from __future__ import annotations

import argparse
from importlib import resources
from pathlib import Path
from typing import Any

from kernelbench_dist import problems
from kernelbench_dist.cli._progress import progress
from kernelbench_dist.cli._verbs import Outcome, add_device, add_json, new_verb, of_value

_BACKENDS = ("virtual", "gloo")


def add_to(verbs: Any) -> None:
    """Add the verbs."""
    verb = new_verb(verbs, "new", "write a problem file to start from", "my_problem.py", _new)
    verb.add_argument("file", type=Path, metavar="FILE", help="where; it must not exist yet")
    verb = new_verb(
        verbs,
        "audit",
        "try all that problems promise; it runs their files in this process too",
        "level1/23 my_problem.py",
        _audit,
    )
    verb.add_argument(
        "problems",
        nargs="*",
        metavar="PROBLEM",
        help="names such as level2/47 or 47, or problem files (default: the whole suite)",
    )
    verb.add_argument(
        "--short",
        action="store_true",
        help="only what takes a second or two a problem",
    )
    verb.add_argument(
        "--draws",
        type=int,
        default=50,
        metavar="N",
        help="of the inputs at each size (default: %(default)s)",
    )
    verb.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        metavar="S",
        help="for the draws at each size; it says where fewer were made (default: %(default)s)",
    )
    verb.add_argument(
        "--ranks",
        type=_counts,
        metavar="N,N",
        help="numbers of ranks on which the two forms must agree (default: 2,4; in short, 2)",
    )
    verb.add_argument(
        "--backends",
        type=_backends,
        metavar="NAMES",
        help="what these ranks are: virtual, gloo or both (default: both; in short, virtual)",
    )
    add_device(verb)
    add_json(verb)


def _new(arguments: argparse.Namespace) -> Outcome:
    template = resources.files(problems).joinpath("template.py").read_text(encoding="utf-8")
    try:
        with open(arguments.file, "x", encoding="utf-8") as file:
            file.write(template)
    except FileExistsError:
        raise ValueError(f"{arguments.file} is there already; a new file is accepted") from None
    return Outcome(
        f"wrote {arguments.file}; `kernelbench-dist audit {arguments.file}` says what is missing"
    )


def _audit(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist.harness import audit_problems

    found = []
    with progress() as tell:
        for audit in audit_problems(
            arguments.problems or problems.list_problems(),
            short=arguments.short,
            draws=arguments.draws,
            seconds_a_size=arguments.seconds,
            world_sizes=arguments.ranks,
            backends=arguments.backends,
            device=arguments.device or "cpu",
            progress=tell,
        ):
            found.append(audit)
            if not arguments.json:
                print(audit, flush=True)
    passed = sum(audit.passed for audit in found)
    summary = f"{passed} of {len(found)} problems pass"
    text = of_value([audit.to_dict() for audit in found], summary, arguments).text
    return Outcome(text, 0 if passed == len(found) else 1)


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(word) for word in text.split(",") if word)
    except ValueError:
        counts = (0,)
    if any(not 2 <= count <= 64 for count in counts):
        raise argparse.ArgumentTypeError(f"{text!r}; numbers of 2 to 64 are accepted, as in 2,4")
    return counts


def _backends(text: str) -> tuple[str, ...]:
    names = tuple(word for word in text.split(",") if word)
    if unknown := [name for name in names if name not in _BACKENDS]:
        raise argparse.ArgumentTypeError(
            f"{', '.join(map(repr, unknown))}; {', '.join(_BACKENDS)} are accepted"
        )
    return names
