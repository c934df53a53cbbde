"""The verbs that tell: of the suite's problems, and of this installation."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from kernelbench_dist import build_info, problems
from kernelbench_dist.cli._verbs import Outcome, add_json, add_problem, new_verb, of_value


def add_to(verbs: Any) -> None:
    """Add the verbs."""
    verb = new_verb(verbs, "list", "the suite's problems, one on a line", "", _list)
    verb.add_argument("--tag", metavar="NAME", help="those alone that call it, as all_reduce")
    add_json(verb)
    verb = new_verb(
        verbs, "show", "what a problem's file says of it: formula, shapes, sizes", "47", _show
    )
    add_problem(verb)
    verb.add_argument("--source", action="store_true", help="and the file itself")
    add_json(verb)
    verb = new_verb(
        verbs, "prompt", "what a model is given to solve a problem", "47 > prompt.md", _prompt
    )
    add_problem(verb)
    add_json(verb)
    verb = new_verb(
        verbs, "info", "what is installed, what it was built for, what is missing", "--json", _info
    )
    add_json(verb)


def _list(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist.harness._prompt import describe

    found = [(name, describe(name).summary) for name in problems.list_problems(arguments.tag)]
    width = max((len(name) for name, _ in found), default=0)
    text = "\n".join(f"{name:<{width}}  {summary}".rstrip() for name, summary in found)
    return of_value(
        [{"name": n, "summary": s, "tags": problems.tags(n)} for n, s in found], text, arguments
    )


def _show(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist.harness._prompt import describe, sizes_in_words

    found = describe(arguments.problem)
    lines = [found.name, found.path, "", found.doc, "", "Sizes:", *sizes_in_words(found), ""]
    lines += [f"- ranks of its own: {found.world_size}"] if found.world_size > 1 else []
    lines += ["- gradients are judged too"] if found.backward else []
    lines += ["- two runs must give the same bits"] if found.deterministic else []
    if found.right_trivial_answers:
        right = ", ".join(found.right_trivial_answers)
        lines.append(f"- trivial answers that are right for it: {right}")
    lines += ["", found.source] if arguments.source else []
    value = dataclasses.asdict(found)
    if not arguments.source:
        del value["source"]
    return of_value(value, "\n".join(lines), arguments)


def _prompt(arguments: argparse.Namespace) -> Outcome:
    from kernelbench_dist.harness._prompt import prompt

    text = prompt(arguments.problem)
    name = problems.find(arguments.problem)[0]
    return of_value({"problem": name, "prompt": text}, text, arguments)


def _info(arguments: argparse.Namespace) -> Outcome:
    info = build_info()
    return of_value(dataclasses.asdict(info), str(info), arguments)
