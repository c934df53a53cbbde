"""Fuzzing: what it finds, how far it shrinks, and that a failure can be run again."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given

from kernelbench_dist.harness import FuzzResult, Verdict, fuzz, replay
from kernelbench_dist.harness import _fuzz as fuzz_module
from kernelbench_dist.harness._draws import VALUES, fill, stir
from kernelbench_dist.harness._fuzz_cases import FuzzCase, Plan
from kernelbench_dist.harness._oracle import NO_BOUND, bounds
from kernelbench_dist.harness._values import Expected, compare

DATA = Path(__file__).parent / "data" / "fuzz"
PLAN = Plan(constants={"R": 4, "B": 12, "H": 32, "K": 56}, names=("R", "B", "H", "K"))


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELBENCH_DIST_STATE", str(tmp_path / "state"))


def look(name: str, problem: str = "47", **options: object) -> FuzzResult:
    known = DATA / f"{problem}.py"
    options = {"seed": 1, "device": "cpu", **options}
    return fuzz(DATA / f"{name}.py", known if known.is_file() else problem, **options)


# What is found, and how small it gets


@pytest.mark.parametrize(
    ("name", "problem", "where", "verdict"),
    [
        ("hard_coded", "47", "B=13 (normal values, contiguous)", "INCORRECT_VALUES"),
        ("four_at_a_time", "47", "R=1 B=1 H=1 K=1 (normal values, contiguous)", "INCORRECT_VALUES"),
        ("last_largest", "first_largest", "B=1 H=2 (zeros values, contiguous)", "INCORRECT_VALUES"),
        ("narrow_sum", "sum_of_ints", "B=1 H=2 (limits values, contiguous)", "INCORRECT_VALUES"),
        ("past_the_end", "47", "R=1 B=1 H=1 K=1 (normal values, contiguous)", "NOT_FINITE"),
        (
            "no_bias_when_empty",
            "47",
            "R=1 B=1 H=0 K=1 (normal values, contiguous)",
            "INCORRECT_VALUES",
        ),
        ("crashes_at_17", "47", "R=1 B=17 H=0 K=0 (normal values, contiguous)", "RUNTIME_ERROR"),
        pytest.param(
            "past_the_end_cpp",
            "47",
            "R=1 B=1 H=1 K=1 (normal values, contiguous)",
            "NOT_FINITE",
            marks=[pytest.mark.slow, pytest.mark.timeout(900)],  # a compiler on a busy machine
        ),
    ],
)
def test_the_smallest_case_in_one_line(name, problem, where, verdict):
    result = look(name, problem)
    assert result.reason.startswith(f"wrong at {where}: {verdict}: ")
    assert "\n" not in result.reason
    assert result.verdict is Verdict(verdict)
    assert result.shrunk
    assert result.reproduced
    if name != "past_the_end_cpp":  # its time is the compiler's
        assert result.seconds < 60


@pytest.mark.slow
def test_a_hang_at_some_size_is_shrunk_within_the_time():
    result = look("hangs_at_5", timeout_s=1.0)
    assert result.verdict is Verdict.TIMEOUT
    assert result.reason.startswith("wrong at R=1 B=5 H=0 K=0 (normal values, contiguous): ")
    assert result.seconds < 60


def test_what_is_right_passes_with_all_kinds_of_values():
    result = look("honest", examples=40)
    assert result.passed, result.reason
    assert result.varied == ("R", "B", "H", "K")
    assert result.cases >= 40
    assert result.skipped > 0  # R = 0: the reference has nothing to concatenate
    assert (result.case, result.stored, result.shrunk) == (None, None, None)


@pytest.mark.parametrize("values", ["large", "tiny", "inf", "nan"])
def test_what_is_right_passes_at_the_ends_of_the_range(values):
    result = look("honest", examples=8, values=[values], dtype="float16")
    assert result.passed, result.reason


def test_a_size_that_only_the_submission_fixes_does_not_vary():
    result = look("hard_coded")
    assert result.varied == ("B",)
    assert result.case.sizes == {"R": 4, "B": 13, "H": 32, "K": 56}


@pytest.mark.slow
def test_gradients_are_judged_where_they_are_asked_for(tmp_path):
    assert look("no_gradient_of_bias", examples=5).passed
    result = look("no_gradient_of_bias", examples=20, backward=True)
    assert "R=1 B=1 H=0 K=1" in result.reason
    assert "grad of proj.bias" in result.reason
    assert "grad of proj.bias: the reference" in shown(result)


def test_least_size_leaves_empty_tensors_out():
    result = look("crashes_at_17", least_size=1)
    assert result.case.sizes == {"R": 1, "B": 17, "H": 1, "K": 1}


@pytest.mark.slow
def test_answers_kept_from_call_to_call_are_told_from_wrong_ones():
    result = look("remembers", examples=80, least_size=1, values=["normal"])
    assert not result.passed
    assert result.reproduced is False
    assert any("keeps something from call to call" in note for note in result.notes)


def test_the_same_seed_finds_the_same():
    first, second = look("no_bias_when_empty", seed=7), look("no_bias_when_empty", seed=7)
    assert first.case == second.case
    assert (first.cases, first.skipped) == (second.cases, second.skipped)


def test_the_time_limit_cuts_shrinking_short():
    result = look("honest", time_limit_s=1e-3)
    assert (result.cases, result.skipped, result.verdict) == (1, 0, Verdict.PASSED)
    assert "when the time limit of 0.001 s came" in result.reason
    result = look("last_largest", "first_largest", values=["ties"], time_limit_s=1e-3)
    assert result.case.sizes == {"B": 6, "H": 20}  # the problem's own: there was no time for more
    assert result.shrunk is False
    assert any("cut short by the time limit of 0.001 s" in note for note in result.notes)


def test_no_folder_is_left_where_the_caller_stands(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert look("honest", examples=3).passed
    assert list(here.iterdir()) == []


# What is no failure of the submission


@pytest.mark.slow
def test_a_reference_that_takes_its_own_sizes_alone_is_the_problems_fault(tmp_path):
    text = (DATA / "first_largest.py").read_text()
    path = tmp_path / "stubborn.py"
    path.write_text(text.replace("B = 6\n", "B = 1000\n").replace("(self.rows,", "(1000,"))
    result = fuzz(DATA / "last_largest.py", path, seed=1, device="cpu", examples=3)
    assert result.verdict is Verdict.PROBLEM_ERROR
    assert result.reason.startswith("1 of ")
    assert "x is (" in result.reason


def test_without_hypothesis_the_extra_is_named(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        fuzz_module.importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "hypothesis" else find(name, *rest),
    )
    result = look("honest")
    assert result.verdict is Verdict.ENVIRONMENT_ERROR
    assert "kernelbench-dist[test]" in result.reason


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"examples": 0}, "examples is 0; an int of 1 or more"),
        ({"time_limit_s": 0}, "time_limit_s is 0; a positive number"),
        ({"timeout_s": -1}, "timeout_s is -1"),
        ({"values": ["odd"]}, "values hold 'odd'; normal, zeros"),
        ({"layouts": ["round"]}, "layouts hold 'round'; contiguous"),
        ({"least_size": 65}, "least_size is 65; an int from 0 to 64"),
    ],
)
def test_a_bad_value_is_named(options, said):
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        look("honest", **options)


# A failure again


def shown(result: FuzzResult) -> str:
    """What the stored snippet prints."""
    program = Path(result.stored).with_suffix(".py")
    assert program.read_text() == result.snippet
    ran = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=120, check=True
    )
    return ran.stdout


@pytest.fixture(scope="module")
def failure(tmp_path_factory) -> FuzzResult:
    store = tmp_path_factory.mktemp("store")
    return look("no_bias_when_empty", store=store)


def test_the_snippet_shows_both_answers(failure):
    out = shown(failure)
    expected = failure.trial.outputs[0].worst_expected
    assert "output 0: the submission, (1, 1)\ntensor([[0.]])" in out
    assert f"worst at flat index 0: 0.0, expected {expected}" in out


@pytest.mark.slow
def test_the_snippet_reads_past_the_end_as_the_judge_does(tmp_path):
    result = look("past_the_end", layouts=["offset"], store=tmp_path)
    assert result.case.layout == "offset"
    assert "tensor([[nan]])" in shown(result)


def test_replay_says_whether_it_still_fails(failure):
    again = replay(failure.stored)
    assert again.reason.startswith("still wrong at R=1 B=1 H=0 K=1 (normal values, contiguous): ")
    assert again.trial.outputs == failure.trial.outputs
    assert again.submission.sha256 == failure.submission.sha256
    mended = replay(failure.stored, source=DATA / "honest.py")
    assert mended.passed
    assert "does not fail any more at R=1 B=1 H=0 K=1" in mended.reason


def test_replay_takes_the_stored_text_and_not_the_file_as_it_is_now(tmp_path):
    mine = tmp_path / "mine.py"
    shutil.copy(DATA / "no_bias_when_empty.py", mine)
    result = fuzz(mine, "47", seed=1, device="cpu")
    mine.write_text((DATA / "honest.py").read_text())
    name = Path(result.stored).stem
    assert result.stored == str(tmp_path / "state" / "failures" / f"{name}.json")
    assert result.replay == f"kernelbench-dist replay {name}"
    assert replay(name[:6]).verdict is Verdict.INCORRECT_VALUES
    assert replay(name, source=mine).passed


def test_a_submission_that_came_as_text_has_a_snippet_too(tmp_path):
    text = (DATA / "no_bias_when_empty.py").read_text()
    result = fuzz(text, "47", seed=1, device="cpu", store=tmp_path)
    assert "worst at flat index 0: 0.0" in shown(result)


def test_a_problem_that_has_changed_is_a_note(tmp_path):
    problem = tmp_path / "problem.py"
    shutil.copy(DATA / "first_largest.py", problem)
    result = fuzz(DATA / "last_largest.py", problem, seed=1, device="cpu")
    problem.write_text(problem.read_text() + "\n# changed\n")
    again = replay(result.stored)
    assert again.verdict is Verdict.INCORRECT_VALUES
    assert any("has changed since" in note for note in again.notes)
    problem.unlink()
    with pytest.raises(FileNotFoundError, match="no problem file at"):
        replay(result.stored)


def test_an_id_must_fit_one_failure(tmp_path):
    for name in ("abc1", "abc2"):
        (tmp_path / f"{name}.json").write_text("{}")
    with pytest.raises(ValueError, match="'abc' fits abc1, abc2"):
        replay("abc", store=tmp_path)
    with pytest.raises(FileNotFoundError, match="no failure in"):
        replay("abd", store=tmp_path)
    with pytest.raises(ValueError, match="holds no failure of fuzz"):
        replay("abc1", store=tmp_path)


def test_a_store_that_cannot_be_written_loses_no_failure(tmp_path):
    (tmp_path / "file").write_text("")
    result = look("no_bias_when_empty", store=tmp_path / "file")
    assert result.verdict is Verdict.INCORRECT_VALUES
    assert result.stored is None
    assert any("could not be stored" in note for note in result.notes)


def test_the_result_goes_to_json_and_back(failure):
    data = json.loads(failure.to_json())
    assert (data["tool"], data["case"]["sizes"]["H"]) == ("fuzz", 0)
    assert FuzzResult.from_dict(data) == failure


# Parts


@given(PLAN.strategy())
def test_sizes_are_drawn_so_that_no_case_is_large(case):
    assert math.prod(max(size, 1) for size in case.sizes.values()) <= 1 << 22


@given(PLAN.strategy())
def test_every_simpler_case_comes_first_in_order_but_for_its_seed(case):
    at = PLAN.order(case)
    for other in PLAN.simpler(case):
        assert PLAN.order(other)[:-1] <= at[:-1]
        assert PLAN.order(other) != at


def test_the_simplest_case_has_no_simpler_one():
    sizes = dict.fromkeys(PLAN.names, 0)
    case = FuzzCase(sizes=sizes, values="normal", layout="contiguous", seed=0)
    assert list(PLAN.simpler(case)) == []


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "int32", "uint8", "bool"])
def test_values_keep_shape_and_dtype_and_follow_the_seed(kind, dtype):
    before = (torch.arange(60.0).view(3, 20) % 7 - 3).to(getattr(torch, dtype))
    first, second = (fill(before, kind, torch.Generator().manual_seed(seed)) for seed in (5, 5))
    assert (first.shape, first.dtype) == (before.shape, before.dtype)
    assert torch.equal(first.nan_to_num(), second.nan_to_num())


def test_kinds_of_values_are_what_they_are_called():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(40, 25, generator=g)
    top, normal = torch.finfo(torch.float32).max, torch.finfo(torch.float32).smallest_normal
    assert fill(x, "zeros", g).eq(0).all()
    assert set(fill(x, "ties", g).unique().tolist()) == {-2, -1, 0, 1, 2}
    large, tiny = fill(x, "large", g), fill(x, "tiny", g)
    assert 1e34 < large.abs().max() < top / 4096 * 1.01
    assert large.abs().sum().isfinite()  # 1000 terms
    assert 0 < tiny.abs().max() < normal
    assert 20 < fill(x, "nan", g).isnan().sum() < 120
    assert set(fill(x, "inf", g)[fill(x, "inf", g).isinf()].sign().tolist()) <= {-1.0, 1.0, 0.0}
    assert fill(x[:1, :1], "inf", g).isinf().all()
    ints = torch.full((9, 9), 3, dtype=torch.int8)
    assert set(fill(ints, "limits", g).unique().tolist()) == {-128, 0, 1, 127}
    assert fill(ints, "nan", g).eq(3).all()


def test_equal_parameters_are_stirred_and_others_left():
    g = torch.Generator().manual_seed(0)
    ones, mixed = torch.ones(5), torch.arange(5.0)
    assert ((stir(ones, g) >= 1.25) & (stir(ones, g) <= 1.75)).all()
    assert len(stir(ones, g).unique()) == 5
    assert stir(mixed, g) is mixed


@pytest.mark.parametrize("answer", [math.inf, -math.inf, math.nan, 0.0])
def test_where_the_reference_overflows_any_answer_stands(answer):
    exact = torch.tensor([1e39, 2.0], dtype=torch.float64)
    eager = torch.tensor([math.inf, 2.0])
    (bound,) = bounds([exact], [eager], lambda: [exact])
    assert bound[0] == NO_BOUND
    expected = Expected(("output",), (torch.float32,), (exact,), (bound,))
    assert compare(expected, [torch.tensor([answer, 2.0])], 0)[1] is None
    _, fault = compare(expected, [torch.tensor([answer, 3.0])], 0)
    assert fault.verdict is Verdict.INCORRECT_VALUES


def test_subnormal_sums_may_be_off_as_far_as_the_references_own():
    exact = torch.tensor([1e-41], dtype=torch.float64)
    smallest = 2.0**-149
    eager = torch.tensor([1e-41 + 3 * smallest])
    (bound,) = bounds([exact], [eager], lambda: [exact])
    assert bound.item() >= 2 * 3 * smallest * 0.8
