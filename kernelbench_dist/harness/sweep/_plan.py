"""What there is to judge: which submission belongs to which problem, found without running any."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelbench_dist import problems as suite
from kernelbench_dist._version import __version__
from kernelbench_dist.harness._submission import Submission, read_submission
from kernelbench_dist.harness.sweep._result import NotJudged

PathOrPaths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class ProblemFile:
    """A problem's name, file and contents, and the ways in which a submission may name it."""

    name: str
    path: Path
    source: bytes
    spellings: frozenset[str]


@dataclass(frozen=True)
class Job:
    """One submission for one problem, whole: it can be judged where neither file exists.

    `key` hashes all that the verdict may depend on but the machine.
    """

    key: str
    name: str
    path: str
    source: bytes
    problem: str
    problem_path: str
    problem_source: bytes
    tool: str
    """"submit_kernel" or "run_correctness\""""
    static: bool
    arguments: dict[str, Any]
    """of the tool, by name"""
    version: str = __version__


@dataclass
class Plan:
    """The jobs by key, the other files with the same contents as a job's, and what has no job."""

    jobs: dict[str, Job] = field(default_factory=dict)
    copies: dict[str, list[str]] = field(default_factory=dict)
    not_judged: list[NotJudged] = field(default_factory=list)


def make_plan(
    problems: PathOrPaths,
    submissions: PathOrPaths,
    *,
    tool: str,
    static: bool,
    arguments: dict[str, Any],
) -> Plan:
    """A job for each submission that belongs to a problem.

    Raises FileNotFoundError and ValueError where a path holds nothing to judge.
    """
    files, plan = find_problems(problems), Plan()
    for path, folders in find_submissions(submissions):
        name = str(path)
        try:
            submission, source = read_submission(path), path.read_bytes()
        except (OSError, ValueError) as error:
            plan.not_judged.append(NotJudged(submission=name, reason=str(error)))
            continue
        matched = match(submission, folders, files)
        if isinstance(matched, str):
            plan.not_judged.append(NotJudged(submission=name, reason=matched))
            continue
        options = {"tool": tool, "static": static, **arguments}
        key = _key(source, matched, options)
        if key in plan.jobs:
            plan.copies.setdefault(key, []).append(name)
            continue
        plan.jobs[key] = Job(
            key=key,
            name=name,
            path=str(path.absolute()),
            source=source,
            problem=matched.name,
            problem_path=str(matched.path),
            problem_source=matched.source,
            tool=tool,
            static=static,
            arguments=arguments,
        )
    return plan


def find_problems(problems: PathOrPaths) -> list[ProblemFile]:
    """The problems of a folder (every file that binds Model), or those named one by one."""
    found: dict[str, tuple[str, Path]] = {}  # by the address: each once, in each of its forms
    for item in _items(problems):
        if Path(item).is_dir():
            for path in _python_files(Path(item)):
                if _may_be_problem(path):
                    name, real = suite.find(path)
                    inside = path.relative_to(item).with_suffix("").as_posix()
                    found[str(real)] = (name if "/" in name else inside), real
        else:
            name, real = suite.find(item)
            found[suite.address(name, real)] = name, real
    if not found:
        raise ValueError(f"problems {problems!r} holds no problem: a file that defines Model")
    taken: dict[str, Path] = {}
    for name, path in found.values():
        if name in taken:
            raise ValueError(f"two problems are named {name!r}: {taken[name]} and {path}")
        taken[name] = path
    return [
        ProblemFile(name, path, path.read_bytes(), _spellings(name, path))
        for name, path in taken.items()
    ]


def find_submissions(submissions: PathOrPaths) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Each file, once, with the names of the folders that it lies in, outermost first."""
    seen: set[Path] = set()
    for item in _items(submissions):
        root = Path(item)
        if root.is_dir():
            # What a folder is called says something too where it is given by itself.
            inside = [
                (p, (*_last(root), *p.relative_to(root).parts[:-1])) for p in _python_files(root)
            ]
        elif root.exists():
            inside = [(root, _last(root.absolute().parent))]
        else:
            raise FileNotFoundError(f"no submission {root}")
        for path, folders in inside:
            if (real := path.resolve()) not in seen:
                seen.add(real)
                yield path, folders
    if not seen:
        raise ValueError(f"submissions {submissions!r} holds no Python file")


def match(
    submission: Submission, folders: Sequence[str], problems: Sequence[ProblemFile]
) -> ProblemFile | str:
    """The problem that a submission is for, or why there is none.

    What its PROBLEM says counts most, then the folders that it lies in ("level2/47", "47" or the
    problem's full name). Without either it belongs to the only problem, if there is only one.
    """
    named = _problem_constant(submission)
    if named is not None:
        wanted = named.removesuffix(".py")
        found = [p for p in problems if wanted in p.spellings]
        if len(found) == 1:
            return found[0]
        return _no_problem(f"PROBLEM is {named!r}", found, problems)
    runs = [
        "/".join(folders[i:j]) for i in range(len(folders)) for j in range(i + 1, len(folders) + 1)
    ]
    # "level2/47" says more than "47".
    for run in sorted(runs, key=lambda run: run.count("/"), reverse=True):
        found = [p for p in problems if run in p.spellings]
        if len(found) == 1:
            return found[0]
        if found:
            return _no_problem(f"its folder is {run!r}", found, problems)
    if len(problems) == 1:
        return problems[0]
    return _no_problem("it has no PROBLEM, and its folder names none", [], problems)


def _no_problem(said: str, found: Sequence[ProblemFile], all_: Sequence[ProblemFile]) -> str:
    if found:
        return f"{said}, which may be any of {', '.join(p.name for p in found)}"
    names = ", ".join(p.name for p in all_[:3]) + (", ..." if len(all_) > 3 else "")
    return f"{said}: none of the {len(all_)} problem(s) ({names})"


def _problem_constant(submission: Submission) -> str | None:
    """The value of a top-level `PROBLEM = "level2/47"`; also of a file that does not parse."""
    if submission.tree is None:
        pattern = r"""^PROBLEM\s*(?::\s*\w+\s*)?=\s*["']([^"'\n]+)["']"""
        text = re.search(pattern, submission.text, re.MULTILINE)
        return text[1] if text else None
    for node in submission.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        if any(isinstance(t, ast.Name) and t.id == "PROBLEM" for t in targets):
            value = node.value  # type: ignore[attr-defined]
            if isinstance(value, ast.Constant):
                return str(value.value)
            return ast.unparse(value) if value is not None else None
    return None


def _may_be_problem(path: Path) -> bool:
    """Whether a file binds Model at its top level, or does not parse, as the judge will say."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            names.update(t.id for t in node.targets if isinstance(t, ast.Name))
    return "Model" in names


def _python_files(folder: Path) -> list[Path]:
    """In order of their names; not those below hidden folders, nor a package's empty __init__."""
    paths = (p for p in folder.rglob("*.py") if p.is_file())
    shown = (p for p in paths if not any(s.startswith(".") for s in p.relative_to(folder).parts))
    return sorted(p for p in shown if p.name != "__init__.py" or p.stat().st_size)


def _spellings(name: str, path: Path) -> frozenset[str]:
    stem, level = path.stem, path.parent.name
    number = stem.split("_")[0]
    short = {number, f"{level}/{number}"} if number.isdecimal() else set()
    spellings = {stem, f"{level}/{stem}"} | short
    ranks = suite.ranks_in(name)
    return frozenset({name} | ({f"{s}@{ranks}" for s in spellings} if ranks else spellings))


def _last(folder: Path) -> tuple[str, ...]:
    """The names of the last two folders, as in level2/47."""
    return folder.absolute().parts[1:][-2:]


def _items(value: PathOrPaths) -> Iterable[str | os.PathLike[str]]:
    return [value] if isinstance(value, (str, os.PathLike)) else value


def _key(source: bytes, problem: ProblemFile, options: dict[str, Any]) -> str:
    parts = [
        __version__,
        hashlib.sha256(source).hexdigest(),
        problem.name,
        hashlib.sha256(problem.source).hexdigest(),
        options,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
