"""Which submission a sweep judges for which problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sweep_cases import HONEST, PROBLEM, Write, plan

from kernelbench_dist.harness.sweep import (
    sweep,
)


@pytest.fixture
def three(write: Write) -> Path:
    """A folder of three problems, two of them of the same number, beside files that are none."""
    write(PROBLEM, "problems/level1/3_sum.py")
    write(PROBLEM, "problems/level1/4_max.py")
    write(PROBLEM, "problems/level2/3_cat.py")
    write("def helper(): pass\n", "problems/helper.py")
    return write("", "problems/__init__.py").parent


@pytest.mark.parametrize(
    ("file", "head", "problem"),
    [
        ("level1/3/a.py", "", "level1/3_sum"),
        ("level2/3/a.py", "", "level2/3_cat"),
        ("4/a.py", "", "level1/4_max"),
        ("4_max/a.py", "", "level1/4_max"),
        ("level1/4_max/some_model/a.py", "", "level1/4_max"),
        ("a.py", 'PROBLEM = "level2/3"', "level2/3_cat"),
        ("a.py", "PROBLEM: str = '4_max.py'", "level1/4_max"),
        ("a.py", "PROBLEM = 4", "level1/4_max"),
        ("level1/3/a.py", 'PROBLEM = "level2/3"', "level2/3_cat"),  # the file says it itself
        ("a.py", 'PROBLEM = "level2/3"\nclass ModelNew(', "level2/3_cat"),  # does not parse
    ],
)
def test_a_submission_finds_its_problem(
    three: Path, write: Write, file: str, head: str, problem: str
) -> None:
    write(f"{head}\n{HONEST}", f"submissions/{file}")
    made = plan(three, three.parent / "submissions")
    assert [j.problem for j in made.jobs.values()] == [problem]
    assert made.not_judged == []


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("3/a.py", HONEST, "its folder is '3', which may be any of level1/3_sum, level2/3_cat"),
        ("a.py", HONEST, "it has no PROBLEM, and its folder names none"),
        ("a.py", "PROBLEM = 'level9/1'\n" + HONEST, "PROBLEM is 'level9/1': none of the 3"),
        ("a.py", "PROBLEM = str(4)\n" + HONEST, "PROBLEM is 'str(4)': none of the 3"),
        ("a.py", "", "is empty"),
        ("a.py", "x = 1\0", "holds a NUL"),
    ],
)
def test_a_file_without_a_problem_is_listed(
    three: Path, write: Write, file: str, text: str, said: str
) -> None:
    path = write(text, f"submissions/{file}")
    made = plan(three, path.parents[file.count("/")])
    assert made.jobs == {}
    (one,) = made.not_judged
    assert one.submission == str(path)
    assert said in one.reason


def test_the_only_problem_takes_all_but_those_of_another(write: Write) -> None:
    problem = write(PROBLEM)
    write(HONEST, "submissions/any_model/a.py")
    write("PROBLEM = 'level9/1'\n" + HONEST, "submissions/b.py")
    made = plan(problem, problem.parent / "submissions")
    assert [Path(j.name).name for j in made.jobs.values()] == ["a.py"]
    assert [Path(n.submission).name for n in made.not_judged] == ["b.py"]


def test_matching_runs_no_submission(write: Write, tmp_path: Path) -> None:
    touch = f"open({str(tmp_path / 'was_run')!r}, 'w')\n"
    plan(write(PROBLEM), write(touch + HONEST, "a.py"))
    assert not (tmp_path / "was_run").exists()


def test_the_key_depends_on_all_that_the_verdict_does(write: Write) -> None:
    problem, submission = write(PROBLEM), write(HONEST, "a.py")

    def key(**options: Any) -> str:
        return next(iter(plan(problem, submission, **options).jobs))

    keys = [key(), key(tool="submit_kernel"), key(static=False), key(arguments={"trials": 2})]
    write(HONEST + "# other\n", "a.py")
    keys.append(key())
    write(PROBLEM + "# other\n")
    keys.append(key())
    assert len(set(keys)) == len(keys)
    write(PROBLEM)
    write(HONEST, "a.py")
    assert key() == keys[0]


def test_the_same_contents_are_judged_once(write: Write) -> None:
    problem = write(PROBLEM, "p.py")
    paths = [str(write(HONEST, f"s/{name}.py")) for name in "abc"]
    made = plan(problem, paths)
    (key,) = made.jobs
    assert made.jobs[key].name == paths[0]
    assert made.copies == {key: paths[1:]}


def test_wrong_use_is_named(write: Write, tmp_path: Path) -> None:
    problem, submission, log = write(PROBLEM), write(HONEST, "a.py"), tmp_path / "log"
    (tmp_path / "none").mkdir()
    for wrong, options in [
        ("jobs is 0", {"jobs": 0}),
        ("executor is 'dask'; local and ray", {"executor": "dask"}),
        ("retries is -1", {"retries": -1}),
        ("trials is 0", {"trials": 0}),
        ("timeout_s is 0", {"timeout_s": 0}),
        ("dtype is 'int8'", {"dtype": "int8"}),
        ("device is 'cuda:1'; with executor='ray'", {"executor": "ray", "device": "cuda:1"}),
    ]:
        with pytest.raises(ValueError, match=wrong):
            sweep(problem, submission, log=log, **options)
    with pytest.raises(ValueError, match="holds no problem"):
        sweep(tmp_path / "none", submission, log=log)
    with pytest.raises(ValueError, match="holds no Python file"):
        sweep(problem, tmp_path / "none", log=log)
    with pytest.raises(FileNotFoundError, match=r"no submission .*b\.py"):
        sweep(problem, tmp_path / "b.py", log=log)
    assert not log.exists()
