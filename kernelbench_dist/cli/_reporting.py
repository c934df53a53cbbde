"""The verbs that compare submissions, and that make reports of what is known of them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from kernelbench_dist.cli import _verbs
from kernelbench_dist.cli._progress import progress
from kernelbench_dist.cli._verbs import PROGRAM, Outcome, new_verb, of_result, options_of


def add_to(verbs: Any) -> None:
    """Add the verbs."""
    _add_compare(verbs)
    _add_report(verbs)
    _add_trail(verbs)


def _add_compare(verbs: Any) -> None:
    verb = new_verb(
        verbs,
        "compare",
        "judge several submissions, and time those that are right in the same rounds",
        "47 first.py second.py third.py --sizes large",
        _compare,
    )
    _verbs.add_problem(verb)
    verb.add_argument(
        "submissions",
        metavar="SUBMISSION",
        nargs="+",
        help="Python files that define ModelNew, 2 to 32 of them",
    )
    _verbs.add_dtype(verb)
    _verbs.add_sizes(verb)
    _verbs.add_trials(verb, default=3)
    for add in (
        _verbs.add_seed,
        _verbs.add_device,
        _verbs.add_backward,
        _verbs.add_ranks,
        _verbs.add_static,
        _verbs.add_rounds,
        _verbs.add_timeout,
        _verbs.add_build_timeout,
        _verbs.add_memory_limit,
        _verbs.add_json,
    ):
        add(verb)


def _add_report(verbs: Any) -> None:
    verb = new_verb(
        verbs,
        "report",
        "make a page of stored results: a judgement, a comparison, a profile, a trail, a sweep",
        "submit.json profile.json trail.jsonl --out report.html",
        _report,
    )
    verb.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="what a verb has printed with --json, a trail, a sweep's log; one of each at most",
    )
    verb.add_argument(
        "--out",
        "-o",
        metavar="FILE",
        help="a name that ends in .html, .md or .json; or a folder, where a sweep gets an index "
        "and a page for each verdict (default: Markdown on stdout)",
    )
    verb.add_argument("--title", help="of the page (default: the submission and the problem)")
    verb.add_argument(
        "--source",
        metavar="FILE",
        help="the submission (default: the file that was judged, if it has not changed)",
    )
    verb.add_argument(
        "--reference", metavar="FILE", help="the problem's file (default: the suite's)"
    )
    _verbs.add_json(verb)


def _add_trail(verbs: Any) -> None:
    verb = verbs.add_parser(
        "trail",
        help="take over trails of other systems",
        description="Take over trails of other systems.",
        epilog=f"example: {PROGRAM} trail import theirs.jsonl --into trail.jsonl",
    )
    what = verb.add_subparsers(metavar="WHAT", required=True)
    verb = new_verb(
        what,
        "import",
        "append a trail in the schema of docs/reports.md to one of ours, all lines or none",
        "",
        _import,
    )
    verb.epilog = f"example: {PROGRAM} trail import theirs.jsonl --into trail.jsonl"
    verb.add_argument("theirs", metavar="FILE", help="JSON lines")
    verb.add_argument(
        "--into",
        default="trail.jsonl",
        metavar="FILE",
        help="the trail, made if need be (default: %(default)s)",
    )
    _verbs.add_json(verb)


def _compare(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist.harness import compare

    options = options_of(arguments)
    submissions = [Path(name) for name in options.pop("submissions")]
    with progress() as tell:
        result = compare(submissions, arguments.problem, progress=tell, **options)
    return of_result(result, arguments)


def _report(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist.report import Report, write_sweep

    if arguments.out is not None and (arguments.out.endswith("/") or Path(arguments.out).is_dir()):
        if len(arguments.files) > 1:
            raise ValueError(f"--out {arguments.out} is a folder; the log of one sweep goes there")
        count = write_sweep(arguments.files[0], arguments.out, title=arguments.title)
        return Outcome(f"{count} verdicts written, with {Path(arguments.out, 'index.html')}")
    report = Report.read(
        *arguments.files,
        title=arguments.title,
        source=arguments.source,
        reference=arguments.reference,
    )
    if arguments.out is not None:
        report.write(arguments.out)
        return Outcome(f"written to {arguments.out}")
    if arguments.json:
        return Outcome(report.to_json(indent=2))
    if not sys.stdout.isatty():
        return Outcome(report.to_markdown())
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(report.to_markdown()))
    return Outcome()


def _import(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist.harness._trail_import import import_trail

    entries = import_trail(arguments.theirs, arguments.into)
    if arguments.json:
        return Outcome(json.dumps([e.model_dump(mode="json") for e in entries], indent=2))
    count = f"{len(entries)} {'call' if len(entries) == 1 else 'calls'}"
    return Outcome(f"{count} appended to {arguments.into}")
