"""A problem's two forms, stacked and for ranks, and the audit of what a problem promises."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
import torch

from kernelbench_dist import cli, problems
from kernelbench_dist.distributed_collectives import run_spmd
from kernelbench_dist.harness import Verdict, audit_problems, check_problem, run_correctness
from kernelbench_dist.problems import ProblemError, _forms, load

MEAN = "level1/23_virtual_all_reduce_mean"

RIGHT = """
import torch
import torch.distributed as dist
class ModelNew(torch.nn.Module):
    def forward(self, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return sum(parts) / len(parts)
"""


# The form for ranks


@pytest.mark.parametrize("given", ["level1/23@4", f"{MEAN}@4", "level1/23@04"])
def test_a_name_with_ranks(given) -> None:
    problem = load(given)
    assert problem.name == f"{MEAN}@4"
    assert problem.world_size == 4
    assert problem.constants == {"B": 16, "D": 48}  # R is given
    assert problem.module.SIZES["small"] == {"B": 512, "D": 1024}
    assert problem.module.VARIES == ("B", "D")
    assert problem.Model is problem.module.RankModel


def test_a_path_with_ranks_and_a_file_whose_name_has_an_at(write) -> None:
    text = load("level1/23").path.read_text()
    path = write(text, "mine.py")
    assert (load(f"{path}@2").name, load(f"{path}@2").world_size) == ("mine@2", 2)
    odd = write(text, "mine@3.py")
    assert (load(odd).name, load(str(odd)).world_size) == ("mine@3.py", 1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("level1/23@1", "asks for '1' ranks; 2 to 64 is accepted"),
        ("level1/23@65", "asks for '65' ranks; 2 to 64"),
        ("level1/23@", "asks for '' ranks"),
        ("level1/23@x", "asks for 'x' ranks"),
        ("level1/23@-2", "asks for '-2' ranks"),
        ("level1/23@2@2", "asks for ranks twice"),
        ("level1/23@\u0663", "asks for '\u0663' ranks"),
        ("level1/no@4", "no problem 'level1/no'"),
    ],
)
def test_ranks_that_are_none(given, said) -> None:
    with pytest.raises(ProblemError, match=said):
        load(given)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("class RankModel(nn.Module)", "class Other(nn.Module)", "it defines no RankModel"),
        ('OUTPUT = "same"', "", "OUTPUT is None; 'stacked', 'same' or a tuple"),
        ('OUTPUT = "same"', 'OUTPUT = ("same", "whole")', "OUTPUT is .*'whole'"),
        ('OUTPUT = "same"', 'OUTPUT = "same"\nSHARED = ("w",)', "SHARED names 'w', which"),
        ("R = 4  # ranks", "R = 4.0", "R, the number of ranks, must be an int, not 4.0"),
    ],
)
def test_a_file_without_that_form_says_what_is_missing(write, old, new, said) -> None:
    text = load("level1/23").path.read_text()
    path = write(text.replace(old, new), "mine.py")
    load(path)
    with pytest.raises(ProblemError, match=f"has no form for ranks: {said}"):
        load(f"{path}@2")


def test_a_rank_gets_its_slice_of_what_all_draw_alike() -> None:
    stacked = load("level1/23")
    stacked.module.R = 2
    (x,) = stacked.get_inputs(torch.Generator().manual_seed(7), jitter=False)
    for rank in range(2):
        ranked = load("level1/23@2")
        options = {"sizes_generator": torch.Generator().manual_seed(7), "jitter": False}
        (mine,) = ranked.get_inputs(**options, rank=rank)
        assert torch.equal(mine, x[rank])


@pytest.mark.parametrize("name", ["level1/23@2", "level1/23@3", "level1/23@8"])
def test_it_is_a_program_as_torch_runs_it(name) -> None:
    ranks = load(name).world_size
    outputs = run_spmd(lambda: load(name).Model()(torch.full((2,), float(ranks))), ranks)
    assert [y.tolist() for y in outputs] == [[ranks, ranks]] * ranks


def test_the_judge_takes_the_form_for_ranks() -> None:
    assert check_problem("level1/23@3", device="cpu").passed
    result = run_correctness(RIGHT, "level1/23@3", device="cpu", trials=2)
    assert result.passed, result.reason
    assert result.problem == f"{MEAN}@3"
    assert result.options.world_size == 3


def test_a_wrong_rank_is_found_and_its_replay_names_the_form() -> None:
    wrong = RIGHT.replace("/ len(parts)", "/ len(parts) * (1 + (dist.get_rank() == 2))")
    result = run_correctness(wrong, "level1/23@3", device="cpu", trials=1)
    assert result.verdict is Verdict.INCORRECT_VALUES
    assert "rank 2" in result.reason
    assert f"{MEAN}@3" in result.replay


def test_a_sweep_takes_both_forms_of_one_file(tmp_path) -> None:
    from kernelbench_dist.harness.sweep._plan import find_problems

    found = find_problems(["level1/23", "level1/23@2", "level1/23@4", load("level1/23").path])
    assert [p.name for p in found] == [MEAN, f"{MEAN}@2", f"{MEAN}@4"]
    assert [[s for s in sorted(p.spellings) if s.startswith("level1/23")] for p in found] == [
        ["level1/23", MEAN],
        ["level1/23@2", f"{MEAN}@2"],
        ["level1/23@4", f"{MEAN}@4"],
    ]


def test_the_prompt_is_of_the_form(capsys) -> None:
    assert cli.main(["prompt", "level1/23@4"]) == 0
    out = capsys.readouterr().out
    assert "`RankModel` in the reference below computes" in out
    assert "a torch.distributed program of 4 ranks" in out
    assert "- nominal: B=16, D=48" in out
    assert cli.main(["prompt", "level1/23"]) == 0
    assert "`RankModel` in the reference" not in capsys.readouterr().out


def test_a_skeleton_has_the_constructor_that_a_rank_inherits(capsys, write) -> None:
    text = (
        load("level1/23")
        .path.read_text()
        .replace("class RankModel(nn.Module)", "class RankModel(Model)")
    )
    text = text.replace(
        '    """x (R, B, D) -> y (B, D)."""\n',
        "    def __init__(self):\n        super().__init__()\n        self.w = nn.Linear(2, 3)\n",
    )
    assert cli.main(["prompt", f"{write(text, 'mine.py')}@2"]) == 0
    out = capsys.readouterr().out
    skeleton = out.split("A file to start from:")[1].split("```python\n")[1].split("```")[0]
    names: dict = {}
    exec(skeleton, names)
    assert names["ModelNew"]().w.weight.shape == (3, 2)


# The audit


@pytest.mark.parametrize("name", problems.list_problems())
def test_the_suite_keeps_its_promises_in_short(name) -> None:
    (audit,) = audit_problems([name], short=True)
    assert audit.passed, str(audit)


BROKEN = {
    "no section": ("Where used:", "Used:", "is documented: .*'Where used'"),
    "a size too few": ('    "large": {"R": 8, "B": 4096, "D": 4096},\n', "", "sizes: SIZES has"),
    "a size without D": ('"B": 127, "D": 61', '"B": 127', r"SIZES\['awkward'\] sets R, B; SIZES"),
    "another nominal size": ("B = 16  #", "B = 17  #", r"SIZES\['tiny'\] is"),
    "a size that is none": ('"R", "B", "D")\n', '"R", "E")\n', "VARIES names E, which is no"),
    "a size that is no int": ('"B": 512,', '"B": 512.0,', r"SIZES\['small'\] sets B to 512.0"),
    "a size of none": ('"B": 127,', '"B": 0,', r"SIZES\['awkward'\] sets B to 0"),
    "an input that is none": ("VARIES =", 'INERT = ("y",)\nVARIES =', "INERT names 'y', which"),
    "no Python": ("class Model(", "class Model((", r"checks pass.*\n  loads: SyntaxError[^\n]*$"),
    "ends the process": ("R = 4  # ranks", "raise SystemExit(0)", "loads: SystemExit: 0"),
    "inputs without names": (
        "def forward(self, x: torch.Tensor) -> torch.Tensor:\n        return",
        "def forward(self, *x):\n        (x,) = x\n        return",
        r"Model.forward takes \*x; each input by its name is wanted",
    ),
    "raises": ("return x.mean(0)", "return x.mean(7)", r"runs \(tiny\): IndexError"),
    "not finite": ("return x.mean(0)", "return x.mean(0) / 0", "output 0 of draw 0 is not finite"),
    "no cost": ("def get_cost", "def cost", "it defines no get_cost"),
    "too large a cost": ("(x.numel() + x[0].numel())", "3 * x.numel()", "bytes must move"),
    "an input that does not matter": (
        "return x.mean(0)",
        "return torch.ones_like(x[0])",
        r"needs each input \(tiny\): x does not matter",
    ),
    "INERT that matters": ("VARIES =", 'INERT = ("x",)\nVARIES =', "INERT names x, and other"),
    "a bound for bfloat16": (
        "return x.mean(0)",
        "return x.bfloat16().mean(0).to(x.dtype)",
        r"has a bound that fits \(tiny\): an answer in bfloat16",
    ),
    "no form for ranks": ("class RankModel", "class Ranked", "ranks: it defines no RankModel"),
    "another form for ranks": (
        "y / dist.get_world_size()",
        "y / 3",
        r"agree \(2 virtual ranks\): at tiny, rank 0, output 0 \(same\) differs from Model's by",
    ),
    "another output for ranks": ('"same"\n', '"stacked"\n', "is .16, 48. torch.float64; Model's"),
    "a rank that raises": ("y / dist", "undefined / dist", r"agree .*NameError"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_the_audit_finds(write, case) -> None:
    old, new, said = BROKEN[case]
    text = load("level1/23").path.read_text()
    assert text.count(old) == 1
    path = write(text.replace(old, new), "mine.py")
    (audit,) = audit_problems([path], short=True)
    assert not audit.passed
    assert re.search(said, str(audit)), str(audit)


def test_one_that_fails_on_its_ranks_leaves_the_others_theirs(write) -> None:
    text = load("level1/23").path.read_text()
    right = write(text, "right.py")
    wrong = write(text.replace("y / dist", "undefined / dist"), "wrong.py")
    audits = list(audit_problems([wrong, right], short=True))
    assert [audit.passed for audit in audits] == [False, True]


def test_a_file_to_start_from(tmp_path, capsys) -> None:
    path = tmp_path / "mine.py"
    assert cli.main(["new", str(path)]) == 0
    assert cli.main(["audit", str(path), "--short"]) == 1
    out = capsys.readouterr().out
    assert "is documented: its docstring has a line '...'" in out
    assert "runs (tiny): NotImplementedError" in out
    before = path.read_text()
    assert cli.main(["new", str(path)]) == 2
    assert path.read_text() == before


def test_the_audit_as_json(capsys) -> None:
    assert cli.main(["audit", "level1/23", "--short", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["schema"] == "kernelbench_dist.audit/1"
    assert found["problem"] == MEAN
    assert found["passed"] is True
    assert {check["name"] for check in found["checks"]} >= {"runs", "has forms that agree"}


@pytest.mark.parametrize(
    "words",
    [["level1/23@2"], ["level1/23", "--draws", "0"], ["level1/23", "--ranks", "1"], ["level9/1"]],
)
def test_wrong_use_of_the_audit(capsys, words) -> None:
    try:
        code = cli.main(["audit", *words])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", problems.list_problems())
def test_the_suite_keeps_its_promises_whole(name) -> None:
    (audit,) = audit_problems([name], seconds_a_size=2.0, backends=["virtual"])
    assert audit.passed, str(audit)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_suite_s_programs_agree_on_processes(ranks) -> None:
    cases = [
        _forms.Case(name, ranks, load(name).module.SIZES[size], 20)
        for name in problems.list_problems()
        for size in ("tiny", "awkward")
    ]
    found = zip(cases, _forms.disagreements(cases, "gloo"), strict=True)
    assert {f"{c.problem} {c.sizes}": fault for c, fault in found if fault} == {}


def test_checks_are_plain_data() -> None:
    (audit,) = audit_problems(["level1/23"], short=True)
    assert all(dataclasses.is_dataclass(check) and check.found for check in audit.checks)
