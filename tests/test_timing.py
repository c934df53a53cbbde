"""timing.bench on the CPU: statistics by hand, verdicts on made-up samples, the result's forms.

Wall times here are of sleeps, within loose bounds; a busy machine must not fail these tests.
"""

from __future__ import annotations

import gc
import io
import json
import math
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from kernelbench_dist.timing import BenchResult, Candidate, Environment, Timing, _cuda, bench
from kernelbench_dist.timing._result import compare, with_launch_bound
from kernelbench_dist.timing._stats import median_interval, ratio_interval, verdict
from kernelbench_dist.timing._table import number, renderables

QUICK = {"rounds": 8, "min_time_ms": 0.05, "progress": False}


def nothing(*args):
    pass


# Statistics


def test_summary_by_hand():
    # 1 to 10: percentile p lies at index 9 p / 100; the variance (n - 1) is 82.5 / 9.
    t = Timing.of([3, 1, 2, 10, 9, 8, 7, 6, 5, 4], calls=7)
    assert (t.calls, t.n, t.min_us, t.median_us, t.mean_us) == (7, 10, 1.0, 5.5, 5.5)
    assert t.std_us == pytest.approx(math.sqrt(82.5 / 9))
    assert t.p10_us == pytest.approx(1.9)
    assert t.p95_us == pytest.approx(9.55)
    assert t.over_empty_us is None
    assert t.samples_us == (3, 1, 2, 10, 9, 8, 7, 6, 5, 4)
    floor = Timing.of([0.5] * 10, calls=1)
    assert Timing.of([2.0] * 10, calls=1, empty=floor).over_empty_us == 1.5


@pytest.mark.parametrize(
    ("n", "k"),
    # The k-th smallest of n; the tables of the sign test at 1 %, two-sided.
    [(8, 1), (10, 1), (11, 1), (12, 2), (15, 3), (20, 4), (25, 6), (30, 8), (50, 16)],
)
def test_median_interval_is_the_sign_tests(n, k):
    assert median_interval(list(range(n, 0, -1))) == (k, n + 1 - k)


def test_median_interval_covers_the_median():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(1000):
        low, high = median_interval(list(rng.exponential(size=21)))
        hits += low <= math.log(2) <= high
    assert hits >= 980  # 990 expected or more


def test_ratio_of_constants_is_exact():
    assert ratio_interval([3.0] * 9, [2.0] * 9, seed=0) == (1.5, 1.5, 1.5)


def test_pairing_takes_out_what_both_felt():
    # Each round is slow by its own factor, shared by both: unpaired, the interval would be wide.
    shared = np.random.default_rng(2).lognormal(sigma=1.0, size=40)
    ratio, low, high = ratio_interval(1.1 * shared, shared, seed=0)
    assert (ratio, low, high) == pytest.approx((1.1, 1.1, 1.1))


def test_samples_must_pair():
    with pytest.raises(ValueError, match="there are 8 and 9"):
        ratio_interval([1.0] * 8, [1.0] * 9, seed=0)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.90, 0.98, "faster"),
        (0.90, 0.981, "same"),
        (0.985, 0.99, "same"),
        (0.5, 2.0, "same"),
        (1.01, 1.2, "same"),
        (1.021, 1.2, "slower"),
    ],
)
def test_verdict(low, high, word):
    assert verdict(low, high) == word


def noisy(seed: int, n: int, drift: float, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Samples of two equal functions, timed in the order A B, B A, A B ... while time drifts."""
    rng = np.random.default_rng(seed)
    when = 1 + drift * np.arange(2 * n) / (2 * n)
    times = when * (1 + noise * rng.standard_exponential(2 * n))
    pairs = times.reshape(n, 2)
    first_a = (np.arange(n) % 2 == 0)[:, None]
    pairs = np.where(first_a, pairs, pairs[:, ::-1])
    return pairs[:, 0], pairs[:, 1]


@pytest.mark.parametrize("drift", [0.0, 0.3, -0.3])
@pytest.mark.parametrize("noise", [0.01, 0.1, 0.5])
def test_a_function_is_the_same_as_itself(drift, noise):
    words = [
        verdict(*ratio_interval(*noisy(seed, 50, drift, noise), seed)[1:]) for seed in range(60)
    ]
    assert words.count("same") >= 57  # 19 of 20


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(8, 60), st.floats(-0.3, 0.3))
def test_a_clear_difference_is_seen_both_ways(seed, n, drift):
    a, b = noisy(seed, n, drift, 0.02)
    assert verdict(*ratio_interval(1.3 * a, b, seed)[1:]) == "slower"
    assert verdict(*ratio_interval(a, 1.3 * b, seed)[1:]) == "faster"


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(-20, 20))
def test_the_unit_does_not_change_a_ratio(seed, power):
    a, b = noisy(seed, 21, 0.1, 0.1)
    scale = 2.0**power  # exact, so that the ratios are equal to the last bit
    assert ratio_interval(scale * a, scale * b, seed) == ratio_interval(a, b, seed)


@settings(max_examples=25)
@given(st.lists(st.floats(1e-3, 1e6), min_size=8, max_size=40), st.integers(0, 100))
def test_intervals_hold_the_estimate(samples, seed):
    t = Timing.of(samples, calls=1)
    assert t.min_us <= t.median_low_us <= t.median_us <= t.median_high_us <= max(samples)
    ratio, low, high = ratio_interval(samples, samples, seed)
    assert (ratio, low, high) == (1.0, 1.0, 1.0)


# What is made of samples


def timing(us: float, n: int = 8) -> Timing:
    return Timing.of([us] * n, calls=1)


def test_launch_bound_is_under_three_empty_kernels():
    empty = Candidate("(empty kernel)", timing(1.0), timing(3.0), timing(8.0))
    under = Candidate("a", timing(2.9), timing(99.0), timing(99.0))
    over = Candidate("b", timing(3.0), timing(3.0), timing(3.0))
    cold_only = Candidate("c", None, timing(8.9), timing(99.0))
    assert with_launch_bound(under, empty).launch_bound is True
    assert with_launch_bound(over, empty).launch_bound is False
    assert with_launch_bound(cold_only, empty).launch_bound is True
    assert with_launch_bound(Candidate("d", None, None, timing(1)), empty).launch_bound is None


def test_call_time_of_launch_bound_functions_has_a_note():
    a = Candidate("a", timing(2.0), None, timing(10.0), launch_bound=True)
    b = Candidate("b", timing(1.0), None, timing(5.0), launch_bound=True)
    warm, call = compare([a, b], "a", 0, "graph", on_gpu=True)
    assert (warm.kind, warm.ratio, warm.verdict, warm.note) == ("warm", 0.5, "faster", None)
    assert call.verdict == "faster"
    assert "launch-bound" in call.note
    # Events have launch gaps between them, so they need the same words.
    assert "launch-bound" in compare([a, b], "a", 0, "events", on_gpu=True)[0].note
    assert compare([a, b], "a", 0, "wall", on_gpu=False)[0].note is None
    long = [replace(c, launch_bound=False) for c in (a, b)]
    assert [r.note for r in compare(long, "a", 0, "graph", on_gpu=True)] == [None, None]
    unknown = [replace(c, warm=None, launch_bound=None) for c in (a, b)]
    assert "not measured" in compare(unknown, "a", 0, "wall", on_gpu=True)[0].note


def gpu_result() -> BenchResult:
    """A result as a GPU gives it, made up."""
    a = Candidate("a", timing(2.0), timing(9.0), timing(10.0), launch_bound=True)
    b = Candidate("b", timing(4.123456789), timing(11.0), timing(30.0), launch_bound=False)
    return BenchResult(
        environment=Environment(
            started_at="2030-01-02T03:04:05+00:00",
            device="cuda:0",
            device_name="A GPU",
            driver="999.9",
            cuda="13.0",
            torch="2.11.0",
            python="3.10.0",
            threads=1,
            clock_mhz=None,
            l2_bytes=50 << 20,
        ),
        method="events",
        reason="candidate 'b': capture failed",
        rounds=8,
        seed=0,
        baseline="a",
        candidates=(a, b),
        empty=Candidate("(empty kernel)", timing(1.0), timing(3.0), timing(8.0)),
        ratios=compare([a, b], "a", 0, "events", on_gpu=True),
    )


def test_json_round_trip_keeps_every_bit():
    for result in (gpu_result(), bench({"a": nothing, "b": nothing}, torch.ones(3), **QUICK)):
        data = json.loads(result.to_json())
        assert data["schema"] == "kernelbench_dist.timing/1"
        assert BenchResult.from_json(result.to_json()) == result
        assert BenchResult.from_dict(result.to_dict()) == result


def test_absent_is_null_and_units_are_in_the_names():
    data = bench({"a": nothing}, **QUICK, device="cpu").to_dict()
    candidate = data["candidates"][0]
    assert candidate["warm"] is None
    assert candidate["cold"] is None
    assert candidate["launch_bound"] is None
    assert data["environment"]["clock_mhz"] is None
    assert all(k.endswith("_us") for k in candidate["call"] if k not in ("calls", "n"))


def test_another_schema_is_refused():
    with pytest.raises(ValueError, match=r"schema is 'x/9', and 'kernelbench_dist.timing/1'"):
        BenchResult.from_json('{"schema": "x/9"}')


def test_table_of_a_gpu_result():
    text = str(gpu_result())
    assert "\x1b" not in text
    for wanted in (
        "median us",
        "99 % interval us",
        "p10 us",
        "over empty us",
        "time / a",
        "device time, warm L2, by events",
        "device time, cold L2, by events",
        "call time, wall clock",
        "(empty kernel)",
        "4.123",
        "2.062",
        "slower",
        "driver 999.9",
        "not graph: candidate 'b': capture failed",
        "launch-bound (under three empty kernels): a",
    ):
        assert wanted in text, wanted
    assert max(map(len, text.splitlines())) <= 120


def test_table_says_what_was_not_measured():
    result = gpu_result()
    candidates = [replace(c, warm=None) for c in (*result.candidates, result.empty)]
    text = str(replace(result, candidates=tuple(candidates[:2]), empty=candidates[2]))
    assert "device time, warm L2: not measured" in text
    assert "warm L2, by" not in text


def test_markup_in_a_name_is_text():
    text = str(bench({"[red]a": nothing, "[b]": nothing}, device="cpu", **QUICK))
    assert "[red]a" in text
    assert "[b]" in text


@pytest.mark.parametrize(
    ("us", "text"),
    [(0.0, "0.000"), (0.00012, "0.0001"), (0.7234, "0.7234"), (1.0, "1.000"), (12.345, "12.35"),
     (-1.5, "-1.500"), (999.96, "1000.0"), (123456.7, "123457")],
)  # fmt: skip
def test_number(us, text):
    assert number(us) == text


# bench


def test_sleeps_are_read_back():
    result = bench(
        {"1 ms": lambda: time.sleep(1e-3), "4 ms": lambda: time.sleep(4e-3)}, rounds=8, device="cpu"
    )
    # Lower bounds alone: a busy machine may let a sleeper sleep on.
    assert result["1 ms"].call.median_us >= 1000
    assert result["4 ms"].call.median_us >= 4000
    assert result["1 ms"].call.n == 8
    assert result.ratio("4 ms").verdict == "slower"
    assert result.ratio("4 ms").baseline == "1 ms"
    assert result.empty.call.median_us < result["1 ms"].call.median_us
    assert result["4 ms"].call.over_empty_us == pytest.approx(
        result["4 ms"].call.median_us - result.empty.call.median_us
    )


def test_the_baseline_can_be_named():
    slow, fast = (lambda: time.sleep(2e-3)), nothing
    result = bench({"slow": slow, "fast": fast}, device="cpu", baseline="fast", **QUICK)
    assert result.ratio("slow").verdict == "slower"
    with pytest.raises(KeyError, match="'fast' is the baseline"):
        result.ratio("fast")
    with pytest.raises(KeyError, match="'warm' was not measured"):
        result.ratio("slow", "warm")
    with pytest.raises(KeyError, match=r"no candidate 'x'; there are \['slow', 'fast'\]"):
        result["x"]


def test_short_functions_are_called_many_times_a_sample():
    result = bench({"a": nothing}, device="cpu", rounds=8, min_time_ms=1)
    assert result["a"].call.calls > 100


def test_order_is_seeded_and_reversed():
    def order(seed):
        seen = []
        functions = {n: (lambda n=n: (seen.append(n), time.sleep(1e-3))) for n in "abc"}
        bench(functions, device="cpu", rounds=8, min_time_ms=0.01, seed=seed, progress=False)
        return [seen[-24:][i : i + 3] for i in range(0, 24, 3)]

    rounds = order(1)
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
    assert all(
        second == first[::-1] for first, second in zip(rounds[::2], rounds[1::2], strict=True)
    )
    assert rounds == order(1)
    assert rounds != order(2)


def test_random_state_and_grad_mode():
    modes = set()

    def draw(x):
        modes.add(torch.is_grad_enabled())
        return torch.rand(3) + x

    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    with torch.no_grad():
        bench({"draw": draw}, torch.ones(3), **QUICK)
    assert torch.equal(torch.rand(4), expected)
    assert modes == {False}


def test_environment():
    e = bench({"a": nothing}, device="cpu", **QUICK).environment
    assert e.started_at.endswith("+00:00")
    assert e.torch == torch.__version__
    assert e.device == "cpu"
    assert e.device_name
    assert (e.driver, e.clock_mhz, e.l2_bytes) == (None, None, None)


def test_progress_goes_to_stderr(capsys):
    bench({"a": nothing}, device="cpu", rounds=8, min_time_ms=0.05, progress=True)
    assert capsys.readouterr().out == ""


def test_importing_does_not_import_rich():
    code = "import sys, kernelbench_dist.timing; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# A capture, with everything of CUDA replaced: what Python does around it


class FakeGraph:
    empty_warning = False

    def __init__(self):
        self.log = []

    def capture_begin(self, **options):
        self.log.append("begin")

    def capture_end(self):
        self.log.append("end")
        if self.empty_warning:
            warnings.warn("The CUDA Graph is empty. This usually means ...", stacklevel=1)

    def reset(self):
        self.log.append("reset")


@pytest.fixture
def capture(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "synchronize", nothing)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "set_stream", nothing)
    monkeypatch.setattr(torch.cuda, "current_stream", nothing)
    monkeypatch.setattr(torch.cuda, "_sleep", nothing, raising=False)
    monkeypatch.setattr(_cuda, "_side_stream", lambda device: MagicMock())
    monkeypatch.setattr(_cuda, "_failed_graphs", [])
    return lambda call, calls=1: _cuda._capture(call, calls, torch.device("cuda:0"), (0, 1))


@pytest.mark.parametrize("enabled", [True, False])
def test_a_capture_collects_nothing(capture, enabled):
    seen = []
    (gc.enable if enabled else gc.disable)()
    try:
        assert capture(lambda: seen.append(gc.isenabled()), 3).log == ["begin", "end"]
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    assert seen == [False] * 3


@pytest.mark.parametrize("error", [None, ValueError("on purpose"), KeyboardInterrupt()])
def test_a_candidates_warnings_leave_the_capture(capture, error):
    def call():
        warnings.warn("the candidate's own", stacklevel=1)
        if error is not None:
            raise error

    kept = {None: nullcontext(), ValueError: pytest.raises(_cuda.CaptureError, match="on purpose")}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        with kept.get(error and type(error), pytest.raises(KeyboardInterrupt)):
            capture(call, 5)
    shown = 0 if isinstance(error, KeyboardInterrupt) else 1
    assert [str(w.message) for w in caught] == ["the candidate's own"] * shown
    assert all(w.filename == __file__ for w in caught)
    assert gc.isenabled()


@pytest.mark.filterwarnings("error")
def test_an_empty_graph_is_a_failure_and_no_warning(capture, monkeypatch):
    monkeypatch.setattr(FakeGraph, "empty_warning", True)
    with pytest.raises(_cuda.CaptureError, match="starts no work"):
        capture(nothing)


@pytest.mark.parametrize("entered", [True, False])
def test_only_a_pool_that_was_entered_is_released(capture, monkeypatch, entered):
    def end(device, pool):
        if not entered:
            raise RuntimeError("not currently recording to this pool")

    def fail_once(graph):
        monkeypatch.setattr(FakeGraph, "capture_end", nothing)
        raise RuntimeError("cannot end")

    monkeypatch.setattr(torch, "__version__", "2.13.0")
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
    release = MagicMock()
    monkeypatch.setattr(torch._C, "_cuda_releasePool", release, raising=False)
    monkeypatch.setattr(FakeGraph, "capture_end", fail_once)
    with pytest.raises(_cuda.CaptureError, match="cannot end"):
        capture(nothing)
    assert release.call_args_list == ([((0, (0, 1)),)] if entered else [])


# Bad input


@pytest.mark.parametrize(
    ("candidates", "error", "message"),
    [
        ({}, ValueError, "candidates is empty; one or more named callables"),
        ([nothing], TypeError, "candidates is a list; a mapping from names to callables"),
        (nothing, TypeError, "candidates is a function; a mapping"),
        ({"a": 3}, TypeError, "candidate 'a' is 3; a callable is accepted"),
        ({1: nothing}, TypeError, "name is 1; a str is accepted"),
    ],
)
def test_bad_candidates(candidates, error, message):
    with pytest.raises(error, match=message):
        bench(candidates)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 7}, "rounds is 7; an int of 8 or more"),
        ({"rounds": 9.0}, "rounds is 9.0; an int of 8 or more"),
        ({"min_time_ms": 0}, "min_time_ms is 0; a positive number"),
        ({"min_time_ms": math.nan}, "min_time_ms is nan"),
        ({"seed": -1}, "seed is -1; an int of 0 or more"),
        ({"seed": True}, "seed is True; an int of 0 or more"),
        ({"seed": 2.0}, "seed is 2.0; an int of 0 or more"),
        ({"baseline": "b"}, r"baseline is 'b'; one of the candidates \['a'\]"),
        ({"device": "meta"}, "device is 'meta'; 'cpu' and CUDA devices"),
        ({"device": "toaster"}, "device is 'toaster'; 'cpu' and CUDA devices"),
    ],
)
def test_bad_options(options, message):
    called = []
    with pytest.raises(ValueError, match=message):
        bench({"a": lambda: called.append(1)}, **options)
    assert called == []


def test_inputs_on_several_devices():
    inputs = (torch.ones(2), {"w": [torch.ones(2, device="meta")]})
    with pytest.raises(ValueError, match="several devices, cpu, meta; name the one"):
        bench({"a": nothing}, *inputs)
    assert bench({"a": nothing}, *inputs, device="cpu", **QUICK).environment.device == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_no_cuda_device():
    with pytest.raises(RuntimeError, match="device is 'cuda', but torch sees no CUDA device"):
        bench({"a": nothing}, device="cuda")


@pytest.mark.parametrize("good_calls", [0, 30])
def test_an_exception_names_the_candidate(good_calls):
    calls = 0

    def breaks():
        nonlocal calls
        calls += 1
        time.sleep(1e-3)
        if calls > good_calls:
            raise ZeroDivisionError("on purpose")

    with pytest.raises(RuntimeError, match=r"candidate 'b' failed .*on purpose") as caught:
        bench({"a": nothing, "b": breaks}, device="cpu", **{**QUICK, "rounds": 100})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_table_cuts_nothing(width):
    names = {"sum of squares": lambda: time.sleep(1e-4), "dot": nothing}
    result = bench(names, device="cpu", **QUICK)
    console = Console(file=io.StringIO(), width=width)
    for item in renderables(result, width):
        console.print(item)
    text = console.file.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for word in ("dot", "faster", "baseline", number(result["dot"].call.median_us)):
        assert word in text


def test_a_candidate_that_runs_out_is_named():
    with pytest.raises(RuntimeError, match=r"candidate 'a' failed .*StopIteration"):
        bench({"a": next}, iter(range(3)), device="cpu", **QUICK)
