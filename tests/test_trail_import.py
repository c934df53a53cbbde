"""Trails of other systems: what is taken, and what is refused with its line and the reason."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from kernelbench_dist import cli
from kernelbench_dist.harness._trail import Trail
from kernelbench_dist.harness._trail_import import import_trail

SOURCE = "class ModelNew: ..."
LINE = {
    "time": "2026-01-31T12:00:00Z",
    "tool": "submit_kernel",
    "source": SOURCE,
    "problem": "level2/47",
    "device": "cuda:0",
    "dtype": "float32",
    "verdict": "PASSED",
    "seconds": 3.5,
    "model_seconds": 20,
    "figures": {
        "warm_us": 2.0,
        "call_us": 9,
        "kind": "warm",
        "ratio": 0.5,
        "ratio_low": 0.49,
        "ratio_high": 0.51,
    },
    "model": "I think",
    "tokens": {"prompt": 5},
}


@pytest.fixture
def theirs(tmp_path):
    """Writes a file of lines, each a dict or text as it is."""

    def write(*lines) -> Path:
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        path = tmp_path / "theirs.jsonl"
        path.write_text(text)
        return path

    return write


def with_figures(**changed):
    return {**LINE, "figures": {**LINE["figures"], **changed}}


def without(*keys):
    return {key: value for key, value in LINE.items() if key not in keys}


def test_all_that_a_line_may_say_is_kept(theirs, tmp_path):
    (entry,) = import_trail(theirs(LINE, "", "  "), tmp_path / "ours.jsonl")
    assert entry.sha256 == hashlib.sha256(SOURCE.encode()).hexdigest()
    assert (entry.seconds, entry.model_seconds) == (3.5, 20.0)
    assert (entry.figures.kind, entry.time_us) == ("warm", 2.0)
    assert (entry.tokens.prompt, entry.tokens.completion) == (5, None)
    assert entry.model == "I think"
    assert entry.source_is_correct is True
    assert Trail(tmp_path / "ours.jsonl").read() == [entry]


def test_what_a_line_does_not_say_is_not_known(theirs, tmp_path):
    least = {"time": "2026-01-31T12:00:00+01:00", "tool": "think"}
    (entry,) = import_trail(theirs(least), tmp_path / "ours.jsonl")
    assert (entry.seconds, entry.model_seconds, entry.figures, entry.verdict) == (None,) * 4


def test_deltas_are_worked_out_and_not_believed(theirs, tmp_path):
    false = {"change": -0.9, "within_noise": False, "sha256": "f" * 64}
    second = {**with_figures(warm_us=1.6, ratio=0.4, ratio_low=0.39, ratio_high=0.41)}
    second |= {"source": "another", "delta_to_last": false, "source_is_correct": False}
    first, entry = import_trail(theirs(LINE, second), tmp_path / "ours.jsonl")
    assert first.delta_to_last is None
    assert entry.delta_to_last.change == pytest.approx(-0.2)
    assert entry.delta_to_last.sha256 == first.sha256
    assert entry.source_is_correct is True
    # What was there before counts too, and goes on: the best is now the second.
    third = with_figures(warm_us=1.8, ratio=0.45, ratio_low=0.40, ratio_high=0.5)
    (entry,) = import_trail(theirs(third), tmp_path / "ours.jsonl")
    assert entry.delta_to_best.change == pytest.approx(0.125)
    assert entry.delta_to_best.within_noise  # 0.40 is in [0.39, 0.41]
    assert len(Trail(tmp_path / "ours.jsonl").read()) == 3


def test_a_ratio_without_an_interval_is_never_beyond_noise(theirs, tmp_path):
    alone = {"ratio_low": None, "ratio_high": None}
    lines = (with_figures(**alone), with_figures(warm_us=0.2, ratio=0.05, **alone))
    _, entry = import_trail(theirs(*lines), tmp_path / "ours.jsonl")
    assert entry.delta_to_last.within_noise


def test_a_trail_of_our_own_comes_back_the_same(theirs, tmp_path):
    once = import_trail(theirs(LINE, with_figures(warm_us=1.0)), tmp_path / "ours.jsonl")
    assert import_trail(tmp_path / "ours.jsonl", tmp_path / "again.jsonl") == once


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{nope", "it is no JSON"),
        ("[1]", "Input should be an object"),
        (without("tool"), "tool is missing"),
        (without("time"), "time is missing"),
        ({**LINE, "time": "yesterday"}, "time is 'yesterday': Invalid isoformat"),
        ({**LINE, "time": "2026-01-31T12:00:00"}, "a time with its zone is accepted"),
        ({**LINE, "verdict": "OK"}, "verdict is 'OK': Input should be 'PASSED'"),
        ({**LINE, "speed": 3}, "'speed' is no key of the schema"),
        ({**LINE, "schema": "other/2"}, "schema is 'other/2'"),
        ({**LINE, "seconds": "3"}, "seconds is '3': Input should be a valid number"),
        ({**LINE, "seconds": -1}, "seconds is -1: Input should be greater than or equal to 0"),
        (json.dumps({**LINE, "seconds": float("nan")}), "seconds is nan"),
        ({**LINE, "sizes": {"B": 1.5}}, "sizes.B is 1.5"),
        ({**LINE, "tokens": {"prompt": -1}}, "tokens.prompt is -1"),
        ({**LINE, "sha256": "ABC"}, "sha256 is 'ABC'"),
        ({**LINE, "sha256": "a" * 64}, "and that of source is"),
        (with_figures(kind="cold"), "kind is 'cold', and cold_us is missing"),
        (with_figures(warm_us=0), "figures.warm_us is 0: Input should be greater than 0"),
        (with_figures(ratio_high=None), "with both ratio_low and ratio_high"),
        (with_figures(ratio=None), "with both ratio_low and ratio_high"),
        (with_figures(ratio=0.6), "must ascend"),
        (with_figures(speedup=2), "'figures.speedup' is no key of the schema"),
        ('{"time": "\\ud800", "tool": "a"}', "it is no JSON"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_line(theirs, tmp_path, line, said):
    path = theirs(LINE, "", line, LINE)
    with pytest.raises(ValueError, match="nothing is imported: line 3: ") as refused:
        import_trail(path, tmp_path / "ours.jsonl")
    assert said in str(refused.value)
    assert "line 4" not in str(refused.value)
    assert not (tmp_path / "ours.jsonl").exists()


def test_many_bad_lines_are_named_and_the_rest_counted(theirs, tmp_path):
    with pytest.raises(ValueError, match=r"line 20: .*; and 5 more$"):
        import_trail(theirs(*["[]"] * 25), tmp_path / "ours.jsonl")


def test_wrong_paths(theirs, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*absent"):
        import_trail(tmp_path / "absent", tmp_path / "ours.jsonl")
    with pytest.raises(ValueError, match="is a folder"):
        import_trail(tmp_path, tmp_path / "ours.jsonl")
    with pytest.raises(ValueError, match="holds no line"):
        import_trail(theirs(""), tmp_path / "ours.jsonl")


def test_the_verb(theirs, tmp_path, capsys):
    ours = str(tmp_path / "ours.jsonl")
    assert cli.main(["trail", "import", str(theirs(LINE)), "--into", ours]) == 0
    assert capsys.readouterr().out == f"1 call appended to {ours}\n"
    assert cli.main(["trail", "import", str(theirs(LINE, LINE)), "--into", ours, "--json"]) == 0
    assert [line["tool"] for line in json.loads(capsys.readouterr().out)] == ["submit_kernel"] * 2
    assert cli.main(["trail", "import", str(theirs("{")), "--into", ours]) == 2
    assert "line 1: it is no JSON" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["trail", "import", "--help"])
    out = capsys.readouterr().out
    assert "example: kernelbench-dist trail import" in out
