"""Trail: what it keeps of a call, deltas by hand, and a file that survives its writers."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace

import pytest

from kernelbench_dist.harness import CorrectnessResult, StaticResult, SubmitResult
from kernelbench_dist.harness._results import Launches, Options, Source, SpeedOfLight
from kernelbench_dist.harness.tools import Trail
from kernelbench_dist.timing import BenchResult, Candidate, Environment, Ratio, Timing

NOW = "2026-01-01T00:00:00+00:00"


@pytest.fixture
def trail(tmp_path) -> Trail:
    return Trail(tmp_path / "new" / "trail.jsonl")


def head(name="a", verdict="PASSED", problem="p"):
    source = Source(name="<source>", sha256=name * 64, kind="cpp", kind_is_declared=True)
    return {
        "verdict": verdict,
        "reason": "r",
        "submission": source,
        "problem": problem,
        "started_at": NOW,
        "seconds": 1.0,
    }


def options(**changed):
    fields = {"device": "cpu", "dtype": None, "sizes": (), "trials": 1, "seed": 0}
    return Options(**{**fields, "backward": False, **changed})


def timing(us, ratio, low, high, device_name="CPU", warm_us=None):
    """A submission that takes `us` a call, and `warm_us` on a GPU."""
    call = Timing.of([us] * 8, calls=1)
    warm = None if warm_us is None else Timing.of([warm_us] * 8, calls=1)
    kind = "call" if warm is None else "warm"
    own = Candidate("submission", warm, None, call)
    machine = Environment(NOW, "cpu", device_name, None, None, "2", "3", 1, None, None)
    return BenchResult(
        environment=machine,
        method="wall",
        reason=None,
        rounds=8,
        seed=0,
        baseline="reference",
        candidates=(replace(own, name="reference"), own),
        empty=replace(own, name="empty"),
        ratios=(Ratio("submission", "reference", kind, ratio, low, high, "faster"),),
    )


def submit(
    name, us, ratio, low, high, *, verdict="PASSED", sizes=None, warm_us=None, on="CPU", **o
):
    return SubmitResult(
        **head(name, verdict),
        options=options(**o),
        timing=timing(us, ratio, low, high, on, warm_us),
        timing_sizes=sizes or {},
    )


def add(trail, result):
    return trail.add(result.tool, result, seconds=2.0)


def test_what_is_kept_of_a_call(trail):
    result = SubmitResult(
        **head("c"),
        options=options(device="cuda:0", dtype="float16"),
        timing=timing(9.0, 0.5, 0.4, 0.6, "GPU", warm_us=3.0),
        timing_sizes={"B": 2},
        launches=Launches(kernels=4, copies=0, fills=1, names=("k",) * 4, library_share=0.0),
        speed_of_light=SpeedOfLight(
            bytes_moved=1, flops=1, cost_source="problem", peak_bytes_per_s=1.0,
            peak_flops_per_s=None, peak_source="s", floor_us=1.5, time_us=3.0, time_kind="warm",
            roofline_fraction=0.5, time_class="memory-bound",
        ),
    )  # fmt: skip
    trail.add(
        "submit_kernel",
        result,
        seconds=2.5,
        problem="level2/47_x",
        model="I think",
        model_seconds=4.5,
        tokens={"prompt": 7, "completion": 11},
    )
    (line,) = trail.path.read_text().splitlines()
    kept = json.loads(line)
    assert kept["time"].endswith("+00:00")
    assert kept["figures"] == {
        "warm_us": 3.0, "cold_us": None, "call_us": 9.0, "kind": "warm",
        "ratio": 0.5, "ratio_low": 0.4, "ratio_high": 0.6, "launches": 4, "roofline_fraction": 0.5,
    }  # fmt: skip
    del kept["figures"], kept["time"]
    assert kept == {
        "schema": "kernelbench_dist.trail/1", "tool": "submit_kernel", "submission": "<source>",
        "sha256": "c" * 64, "problem": "level2/47_x", "device": "cuda:0", "device_name": "GPU",
        "dtype": "float16", "sizes": {"B": 2}, "backward": False, "ranks": None,
        "verdict": "PASSED", "reason": "r", "seconds": 2.5, "delta_to_last": None,
        "delta_to_best": None,
        "source_is_correct": True, "model": "I think", "model_seconds": 4.5,
        "tokens": {"prompt": 7, "completion": 11},
    }  # fmt: skip


def test_deltas_to_the_last_and_to_the_best(trail):
    add(trail, submit("a", 100.0, 0.50, 0.49, 0.51))
    second = add(trail, submit("b", 80.0, 0.40, 0.39, 0.41))
    assert second.delta_to_last == second.delta_to_best
    assert second.delta_to_last.change == pytest.approx(-0.2)
    assert not second.delta_to_last.within_noise
    third = add(trail, submit("c", 90.0, 0.45, 0.40, 0.46))
    assert third.delta_to_last.change == pytest.approx(0.125)
    assert third.delta_to_last.within_noise  # 0.40 is in [0.39, 0.41]
    fourth = add(trail, submit("d", 88.0, 0.44, 0.435, 0.445))
    assert fourth.delta_to_last.sha256 == "c" * 64
    assert fourth.delta_to_last.change == pytest.approx(88 / 90 - 1)
    assert fourth.delta_to_last.within_noise
    assert fourth.delta_to_best.sha256 == "b" * 64
    assert fourth.delta_to_best.change == pytest.approx(0.1)
    assert not fourth.delta_to_best.within_noise
    assert fourth.changes() == (
        "time      -2.2 % (within noise) to the last that passed, +10.0 % to the best that passed"
    )
    assert trail.read()[-1] == fourth


@pytest.mark.parametrize(
    "other",
    [
        {"verdict": "CHEATING"},
        {"sizes": {"B": 3}},
        {"dtype": "float16"},
        {"device": "cuda:0"},
        {"on": "another CPU"},
        {"backward": True},
        {"world_size": 4},
        {"warm_us": 1.0},
    ],
    ids=str,
)
def test_what_is_not_comparable_is_not_compared(trail, other):
    add(trail, submit("a", 100.0, 0.5, 0.4, 0.6))
    entry = add(trail, submit("b", 50.0, 0.5, 0.4, 0.6, **other))
    assert (entry.delta_to_last, entry.delta_to_best) == (None, None)
    entry = add(trail, submit("c", 110.0, 0.5, 0.4, 0.6))
    assert entry.delta_to_last.sha256 == entry.delta_to_best.sha256 == "a" * 64
    assert entry.delta_to_last.change == pytest.approx(0.1)


def test_on_a_gpu_device_time_is_compared(trail):
    add(trail, submit("a", 50.0, 0.5, 0.4, 0.6, warm_us=4.0))
    entry = add(trail, submit("b", 90.0, 0.5, 0.4, 0.6, warm_us=3.0))
    assert entry.delta_to_last.change == pytest.approx(-0.25)


def correctness(name, verdict, **changed):
    return CorrectnessResult(**head(name, verdict), options=options(**changed))


def test_whether_the_source_is_known_to_be_correct(trail):
    def known(result):
        return add(trail, result).source_is_correct

    assert known(StaticResult(**head("a"))) is None
    assert known(correctness("a", "TIMEOUT")) is None
    assert known(correctness("a", "PASSED")) is True
    assert known(StaticResult(**head("a"))) is True
    assert known(StaticResult(**head("a", problem="q"))) is None
    assert known(correctness("b", "INCORRECT_VALUES")) is False
    assert known(StaticResult(**head("b"))) is False
    # Right at some draws does not make it right.
    assert known(submit("b", 1.0, 0.5, 0.4, 0.6)) is False
    assert known(correctness("c", "NOT_FINITE", dtype="float16")) is False
    assert known(correctness("c", "PASSED", dtype="float32")) is True


def test_a_torn_line_costs_only_itself(trail):
    trail.add("prompt", seconds=1.0)
    trail.add("fuzz", seconds=1.0)
    whole = trail.path.read_bytes()
    trail.path.write_bytes(whole[:-40])
    assert [e.tool for e in trail.read()] == ["prompt"]
    trail.add("list_problems", seconds=1.0)
    assert [e.tool for e in trail.read()] == ["prompt", "list_problems"]


def test_a_line_of_something_else_is_an_error(trail):
    trail.add("prompt", seconds=1.0)
    with trail.path.open("a") as file:
        file.write('{"schema": "another"}\n')
    with pytest.raises(
        ValueError, match=r"trail\.jsonl:2 is no entry of kernelbench_dist\.trail/1"
    ):
        trail.read()


def _write(path, writer):
    for i in range(8):
        Trail(path).add(f"{writer}/{i}", seconds=0.0, model=str(writer) * 30_000)


def test_concurrent_writers_do_not_mix_their_lines(trail):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(trail.path, n)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    entries = trail.read()
    assert len(trail.path.read_bytes().splitlines()) == len(entries) == 32
    assert {e.tool for e in entries} == {f"{n}/{i}" for n in range(4) for i in range(8)}
    assert all(e.model == e.tool[0] * 30_000 for e in entries)


def test_text_that_no_file_can_hold_is_escaped(trail):
    trail.add("prompt\n", seconds=1.0, reason="\ud800", model="a\ud800\nb")
    (entry,) = trail.read()
    assert (entry.reason, entry.model) == ("\\ud800", "a\\ud800\nb")
    assert len(str(trail).splitlines()) == 2


def test_wrong_use(trail, tmp_path):
    with pytest.raises(ValueError, match="a folder; a file's path is accepted"):
        Trail(tmp_path)
    with pytest.raises(ValueError, match="prompt"):
        trail.add("prompt", seconds=1.0, tokens={"prompt": -1})
    assert trail.read() == []


def test_its_table(trail):
    trail.add("prompt", seconds=1.0)
    trail.add("fuzz", seconds=1.0, reason="no problem 'x'")
    add(trail, submit("a", 100.0, 0.5, 0.49, 0.51))
    add(trail, submit("b", 80.0, 0.4, 0.39, 0.41))
    assert [line.split() for line in str(trail).splitlines()[1:]] == [
        ["1", "prompt", "-", "-", "-", "-", "-", "-", "-"],
        ["2", "fuzz", "-", "error", "-", "-", "-", "-", "-"],
        ["3", "submit_kernel", "a" * 8, "PASSED", "yes", "100", "call", "0.500", "-", "-"],
        ["4", "submit_kernel", "b" * 8, "PASSED", "yes", "80", "call", "0.400",
         "-20.0", "%", "-20.0", "%"],
    ]  # fmt: skip
