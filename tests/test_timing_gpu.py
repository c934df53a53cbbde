"""timing.bench on a CUDA device: known durations read back, and what must not look fast."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch

from kernelbench_dist.timing import bench

pytestmark = pytest.mark.gpu

QUICK = {"rounds": 10, "progress": False}


@pytest.fixture(scope="module", autouse=True)
def device():
    yield torch.device("cuda", torch.cuda.current_device())
    # Whatever the tests did, captures and random numbers work afterwards.
    assert bench({"a": lambda: torch.cuda._sleep(1000)}, cold=False, **QUICK).method == "graph"
    assert torch.isfinite(torch.randn(8, device="cuda")).all()


def cycles_per_us() -> float:
    """The rate of the spin kernel's clock, from a long spin; the first raises the clocks."""
    cycles = 40_000_000  # about 20 ms
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        torch.cuda.synchronize()
    return cycles / (1e3 * start.elapsed_time(end))


def spin(us: float):
    cycles = round(us * cycles_per_us())
    return lambda *args: torch.cuda._sleep(cycles)


@pytest.mark.parametrize("us", [5, 50, 500])
def test_a_spin_kernel_reads_back(us):
    result = bench({"spin": spin(us)}, rounds=20, progress=False)
    assert result.method == "graph", result.reason
    print(result)
    assert result["spin"].warm.over_empty_us == pytest.approx(us, rel=0.05)
    # One cold call has the events' own granularity and jitter in it.
    assert result["spin"].cold.over_empty_us == pytest.approx(us, rel=0.05, abs=1.0)
    assert result["spin"].call.median_us >= 0.95 * us


def test_a_function_is_the_same_as_itself():
    x = torch.randn(1024, 1024, device="cuda")
    words = []
    for seed in range(20):
        functions = {"a": torch.sin, "b": torch.sin}
        result = bench(functions, x, rounds=30, cold=False, seed=seed, progress=False)
        words.append(result.ratio("b").verdict)
    assert words.count("same") >= 19, words


def test_ten_percent_more_is_slower():
    rate = cycles_per_us()
    functions = {
        "a": lambda: torch.cuda._sleep(round(50 * rate)),
        "b": lambda: torch.cuda._sleep(round(55 * rate)),
    }
    for names in (("a", "b"), ("b", "a")):
        result = bench({n: functions[n] for n in names}, rounds=20, progress=False)
        word = "slower" if names[1] == "b" else "faster"
        for kind in ("warm", "cold"):
            ratio = result.ratio(names[1], kind)
            assert ratio.verdict == word, ratio
            assert ratio.ratio == pytest.approx(1.1 if word == "slower" else 1 / 1.1, rel=0.02)


def test_the_empty_kernel_is_small_and_launch_bound():
    result = bench({"tiny": lambda: torch.cuda._sleep(0)}, progress=False)
    print(result)
    assert 0.2 < result.empty.warm.median_us < 3
    assert result.empty.warm.median_us < result.empty.cold.median_us < 20
    assert result.empty.call.median_us > result.empty.warm.median_us
    assert result["tiny"].launch_bound is True
    assert abs(result["tiny"].warm.over_empty_us) < 0.3
    assert bench({"long": spin(100)}, cold=False, **QUICK)["long"].launch_bound is False


def test_cold_is_slower_than_warm_for_what_fits_the_l2(device):
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    x = torch.randn(l2_bytes // 8 // 4, device="cuda")  # an eighth of the L2
    y = torch.empty_like(x)
    result = bench({"copy": lambda: y.copy_(x)}, **QUICK)
    assert result.method == "graph", result.reason
    assert result["copy"].cold.over_empty_us > 1.1 * result["copy"].warm.over_empty_us


@pytest.mark.parametrize("warm", [True, False])
def test_what_was_not_asked_for_is_absent(warm):
    x = torch.ones(64, device="cuda")
    result = bench({"a": torch.exp}, x, warm=warm, cold=not warm, **QUICK)
    assert (result["a"].warm is not None, result["a"].cold is not None) == (warm, not warm)
    assert result.kind == ("warm" if warm else "cold")
    only_call = bench({"a": torch.exp}, x, warm=False, cold=False, **QUICK)
    assert (only_call.kind, only_call.method) == ("call", "wall")


def synchronises(x):
    return (x + x.sum().item()).sum()


def waits_for_the_device(x):
    y = x * 2
    torch.cuda.synchronize()
    return y


def raises_in_a_capture(x):
    if torch.cuda.is_current_stream_capturing():
        raise NotImplementedError("not in a capture")
    return x * 2


def copies_from_the_host(x):
    return x + torch.ones(x.shape).to(x.device)


@pytest.mark.parametrize(
    "fn", [synchronises, waits_for_the_device, raises_in_a_capture, copies_from_the_host]
)
def test_what_cannot_be_captured_is_timed_by_events(fn):
    x = torch.randn(1000, device="cuda")
    torch.manual_seed(3)
    result = bench({"plain": torch.exp, "odd": fn}, x, **QUICK)
    assert result.method == "events"
    assert "'odd'" in result.reason
    assert "capture failed" in result.reason
    assert result["odd"].warm.median_us > 0
    assert result["odd"].cold.median_us > 0
    assert "by events" in str(result)
    # The process is as fit as before: random numbers, memory, captures, the current stream.
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.isfinite(torch.randn(1000, device="cuda")).all()
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.rand(10, device="cuda") + x[:10]
    graph.replay()
    torch.cuda.synchronize()
    assert torch.isfinite(y).all()
    assert bench({"plain": torch.exp}, x, **QUICK).method == "graph"


@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_shows_warnings_and_does_not_collect(fails):
    collecting = set()

    def warns(x):
        if torch.cuda.is_current_stream_capturing():
            collecting.add(gc.isenabled())
            warnings.warn("the candidate's own", stacklevel=1)
            return x.sum().item() if fails else x * 2
        return x * 2

    x = torch.ones(64, device="cuda")
    assert gc.isenabled()
    with pytest.warns(UserWarning, match="the candidate's own"):
        result = bench({"warns": warns}, x, **QUICK)
    assert result.method == ("events" if fails else "graph")
    assert collecting == {False}
    assert gc.isenabled()


def test_failed_captures_do_not_keep_memory():
    x = torch.randn(1 << 20, device="cuda")

    def held():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    bench({"odd": synchronises}, x, warm=True, cold=False, **QUICK)
    before = held()
    for _ in range(3):
        bench({"odd": synchronises}, x, warm=True, cold=False, **QUICK)
    after = held()
    assert after[0] <= before[0] + (1 << 20)  # one failed capture would keep 4 MiB
    # Streams come from a pool of 32, and cuBLAS or the allocator may keep a little for a new one.
    assert after[1] <= before[1] + (32 << 20)


def test_memory_of_a_graph_is_that_of_one_call():
    x = torch.randn(1 << 22, device="cuda")  # 16 MiB; the result as well
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    result = bench({"exp": torch.exp}, x, cold=False, **QUICK)
    assert result["exp"].warm.calls > 20
    assert torch.cuda.max_memory_reserved() - before < 200 << 20


# Work on other streams. The side streams are not the current one's children unless they wait.


def on_side_stream(*, waits: bool, joins: bool):
    side = torch.cuda.Stream()
    work = spin(200)

    def fn():
        current = torch.cuda.current_stream()
        if waits:
            side.wait_stream(current)
        with torch.cuda.stream(side):
            work()
        if joins:
            current.wait_stream(side)

    return fn


def test_a_joined_side_stream_is_captured():
    result = bench({"joined": on_side_stream(waits=True, joins=True)}, cold=False, **QUICK)
    assert result.method == "graph", result.reason
    assert result["joined"].warm.median_us > 190


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("visible", [True, False])
def test_work_that_is_not_joined_does_not_look_fast(waits, visible):
    hidden = on_side_stream(waits=waits, joins=False)
    seen = spin(5)

    def fn():
        hidden()
        if visible:  # some work on the current stream, so that a graph would not be empty
            seen()

    result = bench({"honest": seen, "hidden": fn}, **QUICK)
    assert result.method == "wall", result.reason
    assert "'hidden'" in result.reason
    for timing in (result["hidden"].warm, result["hidden"].cold, result["hidden"].call):
        assert timing.median_us > 190
    assert result.ratio("hidden").verdict == "slower"
    assert bench({"honest": seen}, **QUICK).method == "graph"


# States


def test_backward_is_captured():
    linear = torch.nn.Linear(256, 256, device="cuda")
    x = torch.randn(64, 256, device="cuda", requires_grad=True)

    def gradients(x):
        return torch.autograd.grad(linear(x).square().sum(), [x, *linear.parameters()])

    def accumulates(x):
        linear(x).square().sum().backward()

    result = bench({"grad": gradients, "backward": accumulates}, x, **QUICK)
    assert result.method == "graph", result.reason
    linear.zero_grad()
    x.grad = None
    accumulates(x)
    for mine, theirs in zip(
        gradients(x), (x.grad, *(p.grad for p in linear.parameters())), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_random_states_are_left_as_found():
    def drops(x):
        return torch.nn.functional.dropout(x) + torch.rand(1, device="cuda").item()

    x = torch.ones(1000, device="cuda")
    for fn in (torch.nn.functional.dropout, drops):  # captured, and not
        torch.manual_seed(7)
        cpu, gpu = torch.rand(3), torch.rand(3, device="cuda")
        torch.manual_seed(7)
        bench({"drops": fn}, x, **QUICK)
        assert torch.equal(torch.rand(3), cpu)
        assert torch.equal(torch.rand(3, device="cuda"), gpu)


def test_an_exception_names_the_candidate():
    def breaks(x):
        raise ZeroDivisionError("on purpose")

    x = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match=r"candidate 'b' failed .*on purpose") as caught:
        bench({"a": torch.exp, "b": breaks}, x)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_not_in_a_capture():
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(3, device="cuda")
    with torch.cuda.graph(graph):
        y = x + 1
        with pytest.raises(RuntimeError, match="inside a CUDA graph capture"):
            bench({"a": torch.exp}, x)
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [2.0, 2.0, 2.0]


def test_environment_and_device(device):
    x = torch.ones(3, device="cuda")
    e = bench({"a": torch.exp}, x, **QUICK).environment
    assert e.device == str(device)
    assert e.device_name == torch.cuda.get_device_name()
    assert e.cuda == torch.version.cuda
    assert e.l2_bytes > 0
    assert e.driver is None or e.driver[0].isdigit()
    assert bench({"a": lambda: x + 1}, **QUICK).environment.device == str(device)
    with pytest.raises(ValueError, match="several devices, cpu, cuda:0"):
        bench({"a": torch.add}, x, torch.ones(3))
    with pytest.raises(ValueError, match="device is 'cuda:99'; cuda:0 to cuda:"):
        bench({"a": torch.exp}, x, device="cuda:99")
