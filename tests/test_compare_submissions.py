"""compare: several submissions in the same rounds, and what becomes of those that fail."""

from __future__ import annotations

import json
import re
import sys

import pytest
from report_cases import STORED

from kernelbench_dist import cli, harness
from kernelbench_dist.harness import ComparisonResult, Verdict, compare
from kernelbench_dist.harness import _compare_submissions as module
from kernelbench_dist.harness._timing import measure
from kernelbench_dist.report._terminal import for_terminal
from kernelbench_dist.timing._stats import ratio_interval

PROBLEM = """
import torch

N = 200


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x)


def get_inputs(generator):
    return [torch.randn(N, N, generator=generator)]


def get_init_inputs():
    return []
"""
SUBMISSION = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        {body}
"""
RIGHT = SUBMISSION.format(body="return torch.sin(x)")
SLOW = SUBMISSION.format(body="return sum(torch.sin(x) for _ in range(3)) / 3")
WRONG = SUBMISSION.format(body="return torch.sin(x) + 1")
# Right in a trial of three runs on two draws, and soon no more.
TIRES = """
import torch


class ModelNew(torch.nn.Module):
    left = 8

    def forward(self, x):
        ModelNew.left -= 1
        if ModelNew.left < 0:
            raise ValueError("tired")
        return torch.sin(x)
"""


@pytest.fixture
def problem(write):
    return write(PROBLEM)


@pytest.fixture(scope="module")
def stored() -> ComparisonResult:
    return ComparisonResult.from_dict(json.loads((STORED / "compare.json").read_text()))


def test_those_that_are_right_take_turns_and_the_others_do_not_end_them(problem):
    texts = {"wrong": WRONG, "right": RIGHT, "broken": "def (", "slow": SLOW}
    result = compare(texts, problem, device="cpu", rounds=8, trials=1)
    assert [(e.name, str(e.verdict)) for e in result.entrants] == [
        ("wrong", "INCORRECT_VALUES"),
        ("right", "PASSED"),
        ("broken", "COMPILE_ERROR"),
        ("slow", "PASSED"),
    ]
    assert result.verdict is Verdict.INCORRECT_VALUES
    assert result.reason.startswith("wrong: trial 1: output: ")
    assert result.reason.endswith("(and 1 more failed)")
    timing = result.timing
    assert [c.name for c in timing.candidates] == ["reference", "right", "slow"]
    assert {c.call.n for c in timing.candidates} == {timing.rounds}
    assert sorted(result.ranking) == ["right", "slow"]
    first, second = (timing[name].call.median_us for name in result.ranking)
    assert first <= second
    assert result.ratio(*result.ranking).ratio == pytest.approx(first / second)
    assert ComparisonResult.from_dict(json.loads(result.to_json())) == result


@pytest.mark.slow
def test_one_that_fails_while_timed_is_left_out_and_the_rest_timed_again(problem, monkeypatch):
    timed = []

    def noted(session, *, candidates, **options):
        timed.append(list(candidates))
        return measure(session, candidates=candidates, **options)

    monkeypatch.setattr(module._timing, "measure", noted)
    texts = {"right": RIGHT, "tires": TIRES, "again": RIGHT + "\n"}
    result = compare(texts, problem, device="cpu", rounds=8, trials=1, static=False)
    tired = result.entrants[1]
    assert tired.verdict is Verdict.RUNTIME_ERROR
    assert "tired" in tired.reason
    assert timed == [["right", "tires", "again"], ["right", "again"]]
    assert sorted(result.ranking) == ["again", "right"]
    (pair,) = result.pairs
    assert {pair.name, pair.baseline} == {"again", "right"}


def test_where_none_is_right_nothing_is_timed(problem):
    result = compare([WRONG, WRONG + "\n"], problem, device="cpu", rounds=8, trials=1)
    assert result.timing is None
    assert result.ranking == []
    assert [e.name for e in result.entrants] == ["1. <source>", "2. <source>"]
    with pytest.raises(KeyError, match="nothing was timed"):
        result.ratio("1. <source>", "reference")
    assert "time      not measured" in str(result)


def test_a_broken_problem_is_nobodys_failure(write):
    broken = write(PROBLEM.replace("torch.sin(x)", "torch.nothing(x)"), "broken.py")
    result = compare([RIGHT, WRONG], broken, device="cpu")
    assert result.verdict is Verdict.PROBLEM_ERROR
    assert result.timing is None
    for entrant in result.entrants:
        assert (entrant.verdict, entrant.reason) == (Verdict.PROBLEM_ERROR, "it was not judged")


def test_names_tell_files_apart(write, problem, monkeypatch):
    seen = {}
    monkeypatch.setattr(module, "_Entry", lambda name, read: seen.setdefault(name, read) and None)
    paths = [write(RIGHT, "a/kernel.py"), write(SLOW, "b/kernel.py")]
    with pytest.raises(AttributeError):  # nothing is judged
        compare(paths, problem, device="cpu")
    assert list(seen) == [str(p) for p in paths]


@pytest.mark.parametrize(
    ("submissions", "error", "said"),
    [
        ([RIGHT], ValueError, "there are 1 submissions; 2 to 32 are accepted"),
        ([RIGHT] * 33, ValueError, "there are 33 submissions"),
        (RIGHT, TypeError, "a list of 2 to 32 is accepted"),
        ({"reference": RIGHT, "b": RIGHT}, ValueError, "a submission is named 'reference'"),
    ],
)
def test_wrong_use(problem, submissions, error, said):
    with pytest.raises(error, match=said):
        compare(submissions, problem, device="cpu")
    with pytest.raises(ValueError, match="rounds is 3"):
        compare([RIGHT, WRONG], problem, rounds=3)


# Of a stored comparison


def test_ratios_are_of_paired_rounds(stored):
    first, second = stored.ranking[:2]
    ratio = stored.ratio(second, first)
    a, b = (stored.timing[name].call.samples_us for name in (second, first))
    turned = ratio_interval(b, a, stored.timing.seed)
    straight = ratio_interval(a, b, stored.timing.seed)
    found = (ratio.ratio, ratio.low, ratio.high)
    assert found == pytest.approx(straight, rel=1e-3) or found == pytest.approx(
        (1 / turned[0], 1 / turned[2], 1 / turned[1])
    )


def test_a_ratio_turned_round_is_its_inverse(stored):
    a, b = stored.ranking[0], stored.ranking[-1]
    one, other = stored.ratio(a, b), stored.ratio(b, a)
    assert one.ratio * other.ratio == pytest.approx(1)
    assert one.low * other.high == pytest.approx(1)
    assert one.low <= one.ratio <= one.high
    assert (one.name, one.baseline) == (other.baseline, other.name) == (a, b)
    said = {one.verdict, other.verdict}
    assert said in ({"faster", "slower"}, {"same"})
    to_reference = stored.ratio("reference", a)
    assert to_reference.ratio == pytest.approx(1 / stored.timing.ratio(a).ratio)
    with pytest.raises(KeyError, match=re.escape("no ratio of 'wrong.py'")):
        stored.ratio("wrong.py", a)


def test_the_text_has_a_row_for_each_and_the_failures(stored):
    text = str(stored)
    lines = text.splitlines()
    assert lines[0] == "INCORRECT_VALUES: softmax (compare)"
    rows = [line.split()[0] for line in lines if line.startswith("  ")]
    assert [name for name in rows if name.endswith(".py")] == stored.ranking
    assert any(line.startswith("failed    wrong.py: INCORRECT_VALUES: ") for line in lines)
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in text


def test_at_a_terminal_it_has_colours_and_bars(stored, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    text = for_terminal(stored, width=120)
    assert "\x1b[1;31mINCORRECT_VALUES\x1b[0m" in text
    assert text.count("█") > 40
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert plain.startswith(str(stored))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[\d;]*3\dm", for_terminal(stored, width=120))


def test_the_verb_gives_paths_and_options(problem, write, monkeypatch, stored, capsys):
    calls = []
    monkeypatch.setattr(harness, "compare", lambda *a, **k: calls.append((a, k)) or stored)
    paths = [write(RIGHT, "a.py"), write(WRONG, "b.py")]
    assert cli.main(["compare", str(problem), *map(str, paths), "--rounds", "9"]) == 1
    ((given, about), options) = calls[0]
    assert (given, about) == (paths, str(problem))
    assert (options["rounds"], options["trials"], options["static"]) == (9, 3, True)
    assert capsys.readouterr().out == str(stored) + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.main(["compare", str(problem), *map(str, paths)]) == 1
    assert "█" in capsys.readouterr().out
    assert cli.main(["compare", str(problem), *map(str, paths), "--json"]) == 1
    assert ComparisonResult.from_dict(json.loads(capsys.readouterr().out)) == stored
