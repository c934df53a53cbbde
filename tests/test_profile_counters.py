"""Counters: the raw page, classes and hints. The pages written here are made by hand."""

from __future__ import annotations

import itertools

import pytest
from profile_cases import DATA, access, counters, impossible, measured_pages, page, shared, stalls

from kernelbench_dist._peaks import Peaks
from kernelbench_dist.harness.profile import _classes, _hints
from kernelbench_dist.harness.profile._counters import KernelCounters
from kernelbench_dist.harness.profile._raw_page import NoPageError, read_raw_page
from kernelbench_dist.harness.profile._results import (
    Activity,
    Analysis,
    Class,
    KernelProfile,
    ProfileResult,
    Times,
)

STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


def test_a_page_with_base_units():
    (kernel,) = read_raw_page(
        page(
            {
                "gpu__time_duration.sum": "2,000",
                "dram__bytes_read.sum": "4,000,000",
                "dram__bytes_write.sum": "1,000,000",
                "lts__t_sectors_op_read.sum": "1000",
                "launch__registers_per_thread": "32",
                "launch__occupancy_limit_registers": "16",
                "launch__occupancy_limit_warps": "16",
                "launch__occupancy_limit_blocks": "32",
            },
            units={"gpu__time_duration.sum": "nsecond", "dram__bytes_read.sum": "byte"},
        )
    )
    assert (kernel.name, kernel.grid, kernel.block) == (
        "scale(float *, int)",
        (96, 2, 1),
        (128, 1, 1),
    )
    assert kernel.time_us == pytest.approx(2)
    assert kernel.dram_read_gb_per_s == pytest.approx(2000)  # 4 MB in 2 us
    assert kernel.dram_write_gb_per_s == pytest.approx(500)
    assert kernel.l2_read_bytes == 32_000
    assert kernel.registers_per_thread == 32
    assert kernel.occupancy_limiter == "registers and warps"


@pytest.mark.parametrize(
    ("value", "unit", "us"),
    [("2000", "nsecond", 2), ("2000", "ns", 2), ("2", "usecond", 2), ("0.002", "msecond", 2),
     ("2e-06", "second", 2), ("2", "us", 2)],
)  # fmt: skip
def test_units_of_time(value, unit, us):
    (kernel,) = read_raw_page(
        page({"gpu__time_duration.sum": value}, units={"gpu__time_duration.sum": unit})
    )
    assert kernel.time_us == pytest.approx(us)


@pytest.mark.parametrize(
    ("value", "unit"),
    [("4,000,000", "byte"), ("4,000", "Kbyte"), ("4", "Mbyte"), ("0.004", "Gbyte")],
)
def test_units_of_bytes(value, unit):
    (kernel,) = read_raw_page(
        page({"dram__bytes_read.sum": value}, units={"dram__bytes_read.sum": unit})
    )
    assert kernel.dram_read_bytes == 4_000_000


def test_what_is_missing_is_none_and_never_0():
    (kernel,) = read_raw_page(page({"gpu__time_duration.sum": "n/a", "dram__bytes_read.sum": ""}))
    empty = {"name", "grid", "block"}
    for name, value in kernel.model_dump().items():
        assert name in empty or value in (None, {}, ()), name
    assert kernel.flops is None
    assert kernel.intensity is None
    assert kernel.memory_unit is None
    assert _classes.of_kernel(kernel) is None


def test_a_percentage_that_cannot_be_is_not_told():
    """Passes over a short kernel that disagree."""
    rate = "lts__t_sector_hit_rate.pct"
    noisy, impossible_one = read_raw_page(page({rate: "100.4"}, {rate: "131.2"}))
    assert noisy.l2_hit_percent == 100.4
    assert impossible_one.l2_hit_percent is None


def test_what_was_counted_as_0_is_0():
    (kernel,) = read_raw_page(page({"smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": "0"}))
    assert kernel.flops == 0


def test_stalls_add_up_to_100_and_a_warp_that_issues_is_none():
    values = {"long_scoreboard": 6.0, "wait": 2.5, "barrier": 1.5, "selected": 1.0, "drain": 0.0}
    values["long_scoreboard_not_issued"] = 5.0  # counted in long_scoreboard
    (kernel,) = read_raw_page(page({STALLED.format(k): str(v) for k, v in values.items()}))
    assert sum(stall.percent for stall in kernel.stalls) == pytest.approx(100)
    assert [(s.reason, round(s.percent)) for s in kernel.stalls] == [
        ("long_scoreboard", 60),
        ("wait", 25),
        ("barrier", 15),
        ("drain", 0),
    ]


def _loads(requests: int, sectors: int, asked: int):
    prefix = "pipe_lsu_mem_global_op_ld.sum"
    (kernel,) = read_raw_page(
        page(
            {
                f"l1tex__t_requests_{prefix}": str(requests),
                f"l1tex__t_sectors_{prefix}": str(sectors),
                "smsp__sass_data_bytes_mem_global_op_ld.sum": str(asked),
            }
        )
    )
    return kernel.global_loads


@pytest.mark.parametrize(
    ("asked", "sectors", "ideal", "efficiency"),
    [
        (128, 4, 4, 1),  # 32 lanes of 4 bytes, coalesced: 4 sectors are what it takes
        (512, 16, 16, 1),  # of 16 bytes
        (128, 32, 4, 1 / 8),  # a stride of 32 bytes or more
        (64, 2, 2, 1),  # of 2 bytes
        (128, 1, 4, 1),  # all lanes read one word
    ],
)
def test_sectors_by_the_width_that_lanes_ask_for(asked, sectors, ideal, efficiency):
    loads = _loads(1000, 1000 * sectors, 1000 * asked)
    assert loads.sectors_per_request == sectors
    assert loads.ideal_sectors_per_request == ideal
    assert loads.bytes_per_lane == asked / 32
    assert loads.efficiency == pytest.approx(efficiency)


def test_flops_count_an_fma_twice_and_tensor_products_as_they_are():
    op = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
    (kernel,) = read_raw_page(
        page(
            {
                op.format("ffma"): "100",
                op.format("fadd"): "10",
                op.format("dmul"): "1",
                "sm__ops_path_tensor_src_bf16_dst_fp32.sum": "1000",
                "dram__bytes_read.sum": "500",
                "dram__bytes_write.sum": "105.5",
            }
        )
    )
    assert kernel.flops_by_dtype == {"float32": 210, "float64": 1, "tensor bfloat16": 1000}
    assert kernel.flops == 1211
    assert kernel.intensity == pytest.approx(2, rel=1e-2)


def test_a_pipe_s_share_of_the_active_cycles_becomes_one_of_all():
    pipe = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"
    (kernel,) = read_raw_page(
        page({pipe: "80", "sm__cycles_active.avg": "250", "gpc__cycles_elapsed.max": "1000"})
    )
    assert kernel.pipes_percent == {"fma": 20}


def test_several_launches_and_other_lines():
    text = page({"a": "1"}, {"a": "2"}) + '==PROF== Disconnected from process 4242\n"torn'
    assert len(read_raw_page(text)) == 2


def test_no_page():
    with pytest.raises(NoPageError, match='begins with "ID"'):
        read_raw_page("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission")


# Pages that were measured


@pytest.mark.parametrize(
    ("path", "expected"), [pytest.param(p, e, id=n) for n, p, e in measured_pages()]
)
def test_measured_pages(path, expected):
    kernels = read_raw_page(path.read_text())
    assert kernels
    for kernel in kernels:
        assert impossible(kernel) == []
    profiles = [KernelProfile(counters=k, time_class=_classes.of_kernel(k)) for k in kernels]
    result = made(kernels=tuple(profiles))
    assert expected, f"{path.name} has no entry in {DATA}/expected.json"
    if "launches" in expected:
        assert len(kernels) == expected["launches"]
    longest = max(profiles, key=lambda p: p.counters.time_us)
    if "class" in expected:
        assert longest.time_class.name == expected["class"]
    rules = {hint.rule for hint in _hints.hints(result)}
    assert rules >= set(expected.get("rules", ()))
    assert not rules.intersection(expected.get("not_rules", ()))


# Classes


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"dram_percent": 41.0}, "memory-bound"),
        ({"dram_percent": 40.0}, "latency-bound"),
        ({"dram_percent": 10.0, "l1_percent": 93.0}, "memory-bound"),  # shared memory counts as L1
        ({"dram_percent": 45.0, "pipes_percent": {"tensor": 70.0}}, "compute-bound"),
        ({"dram_percent": 20.0, "pipes_percent": {"fma": 41.0}}, "compute-bound"),
        ({"dram_percent": 20.0, "pipes_percent": {"fma": 40.0}}, "latency-bound"),
        ({"dram_percent": 20.0, "pipes_percent": {"fma": 4.0, "lsu": 95.0}}, "latency-bound"),
    ],
)
def test_class_by_counters(fields, name):
    found = _classes.of_kernel(counters(**fields))
    assert found.name == name
    assert found.source == "counters"


def test_launch_bound_is_under_three_empty_kernels_whatever_counters_say():
    kernels = [KernelProfile(counters=counters(), time_class=None)]
    for us, name in ((2.09, "launch-bound"), (2.1, "memory-bound")):
        times = Times(method="graph", warm_us=us, empty_warm_us=0.7)
        assert _classes.of_call(times, kernels, None, None).name == name


def test_the_roofline_has_the_empty_kernel_as_its_floor():
    peaks = Peaks(1e12, 1e13, "made up")
    times = Times(method="graph", warm_us=4.0, cold_us=10.0, empty_warm_us=1.0, empty_cold_us=3.0)
    by_bytes = _classes.analysis_of(5_000_000, 1, "problem", peaks)  # 5 us
    found = _classes.roofline_light(by_bytes, peaks, times)
    assert (found.fraction, found.limit, found.time_kind) == (pytest.approx(0.5), "memory", "cold")
    by_flops = _classes.analysis_of(1, 80_000_000, "problem", peaks)  # 8 us
    found = _classes.roofline_light(by_flops, peaks, times)
    assert (found.fraction, found.limit) == (pytest.approx(0.8), "compute")
    tiny = _classes.analysis_of(1, 1, "problem", peaks)
    found = _classes.roofline_light(tiny, peaks, times)
    assert (found.fraction, found.limit) == (pytest.approx(0.3), "launch")
    quick = times.model_copy(update={"cold_us": 2.9})
    assert _classes.roofline_light(tiny, peaks, quick).fraction == 1
    assert _classes.roofline_light(tiny, None, times) is None
    assert by_bytes.ridge_point == pytest.approx(10)


def test_without_counters_the_class_is_by_the_cost():
    peaks = Peaks(1e12, 1e13, "made up")
    times = Times(method="graph", warm_us=9.0, cold_us=10.0, empty_warm_us=1.0, empty_cold_us=3.0)
    for nbytes, flops, name in (
        (5_000_000, 1, "memory-bound"),
        (1, 50_000_000, "compute-bound"),
        (3_900_000, 1, "latency-bound"),
    ):
        cost = _classes.analysis_of(nbytes, flops, "problem", peaks)
        light = _classes.roofline_light(cost, peaks, times)
        found = _classes.of_call(times, [], light, cost)
        assert (found.name, found.source) == (name, "analysis")


def test_kernels_count_by_their_time():
    long = counters(time_us=90.0, dram_percent=80.0, l2_percent=0.0)
    short = counters(time_us=10.0, dram_percent=0.0, l2_percent=10.0)
    kernels = [KernelProfile(counters=k, time_class=None) for k in (long, short)]
    found = _classes.of_call(None, kernels, None, None)
    assert "DRAM at 73 %" in found.because
    assert _classes.counter_light([long, short]).percent == pytest.approx(60)


# Hints


def made(**fields) -> ProfileResult:
    known = {"verdict": "PASSED", "reason": "", "started_at": "", "seconds": 1.0}
    return ProfileResult(**{**known, **fields})


def of_kernel(**fields) -> ProfileResult:
    return made(kernels=(KernelProfile(counters=counters(**fields), time_class=None),))


def launches(count: float, name: str = "launch-bound") -> ProfileResult:
    one = Activity(kind="kernel", name="k", launches_per_call=count, us_per_call=1.0)
    return made(activity=(one,), time_class=Class(name=name, because="", source="timer"))


def copies(count: float) -> ProfileResult:
    return made(
        activity=(Activity(kind="copy", name="c", launches_per_call=count, us_per_call=1.0),)
    )


def moved(nbytes: int, of: int = 10_000_000) -> ProfileResult:
    cost = Analysis(bytes_moved=of, flops=0, cost_source="problem", intensity=0.0)
    kernel = counters(dram_read_bytes=nbytes, dram_write_bytes=0)
    return made(analysis=cost, kernels=(KernelProfile(counters=kernel, time_class=None),))


WAITS = {"dram_percent": 40.0, "l2_percent": 0.0}
# By rule: what trips it, what just does not, and its value.
CASES = {
    "several launches": (launches(2), launches(1), 2),
    "copies": (copies(1), copies(0.5), 1),
    "bytes move twice": (moved(15_000_000), moved(14_900_000), 1.5),
    "uncoalesced loads": (
        of_kernel(global_loads=access(0.5)),
        of_kernel(global_loads=access(0.51)),
        50,
    ),
    "uncoalesced stores": (
        of_kernel(global_stores=access(0.125)),
        of_kernel(global_stores=access(0.6)),
        12.5,
    ),
    "bank conflicts": (
        of_kernel(shared_loads=shared(500), shared_stores=shared(0)),
        of_kernel(shared_loads=shared(499), shared_stores=shared(0)),
        25,
    ),
    "local memory": (
        of_kernel(local_loads=access(1, 50), global_loads=access(1, 950)),
        of_kernel(local_loads=access(1, 49), global_loads=access(1, 951)),
        5,
    ),
    "occupancy": (
        of_kernel(occupancy_theoretical_percent=50.0, eligible_warps=0.9),
        of_kernel(occupancy_theoretical_percent=50.0, eligible_warps=1.0),
        50,
    ),
    "uneven work": (
        of_kernel(occupancy_theoretical_percent=100.0, occupancy_achieved_percent=60.0, waves=1.0),
        of_kernel(occupancy_theoretical_percent=100.0, occupancy_achieved_percent=61.0, waves=1.0),
        60,
    ),
    "small grid": (of_kernel(waves=0.5), of_kernel(waves=0.51), 0.5),
    "tail": (of_kernel(waves=1.5), of_kernel(waves=1.61), 25),
    "waiting for memory": (
        of_kernel(**WAITS, stalls=stalls(long_scoreboard=40)),
        of_kernel(dram_percent=41.0, stalls=stalls(long_scoreboard=40)),
        40,
    ),
    "narrow loads": (
        of_kernel(global_loads=access(1), stalls=stalls(long_scoreboard=30)),
        of_kernel(global_loads=access(1, 8000), stalls=stalls(long_scoreboard=30)),
        4,
    ),
    "barriers": (of_kernel(stalls=stalls(barrier=20)), of_kernel(stalls=stalls(barrier=19.9)), 20),
    "shared memory's queue": (
        of_kernel(stalls=stalls(short_scoreboard=10, mio_throttle=20)),
        of_kernel(stalls=stalls(short_scoreboard=10, mio_throttle=19.9)),
        30,
    ),
    "full pipe": (
        of_kernel(stalls=stalls(math_pipe_throttle=30)),
        of_kernel(stalls=stalls(math_pipe_throttle=29.9)),
        30,
    ),
    "divergence": (
        of_kernel(threads_per_instruction=24.0),
        of_kernel(threads_per_instruction=24.1),
        24,
    ),
}


def test_every_rule_has_a_case_and_a_name_of_its_own():
    assert [rule.name for rule in _hints.RULES] == list(CASES)


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_trips_at_its_threshold_and_not_before(rule):
    tripping, quiet, value = CASES[rule]
    (hint,) = [hint for hint in _hints.hints(tripping) if hint.rule == rule]
    assert hint.value == pytest.approx(value)
    assert hint.advice
    assert rule not in {hint.rule for hint in _hints.hints(quiet)}


def test_without_figures_there_are_no_hints():
    bare = KernelCounters(name="k", grid=(1, 1, 1), block=(32, 1, 1))
    kernels = (KernelProfile(counters=bare, time_class=None),)
    assert _hints.hints(made(kernels=kernels)) == ()


def test_launches_are_no_fault_of_a_call_that_is_not_launch_bound():
    assert _hints.hints(launches(5, "memory-bound")) == ()


def test_a_hint_comes_once_for_each_kernel():
    twice = [KernelProfile(counters=counters(waves=0.1, name=n), time_class=None) for n in "aba"]
    found = _hints.hints(made(kernels=tuple(twice)))
    assert [hint.kernel for hint in found] == ["a", "b"]
    assert all(a != b for a, b in itertools.pairwise(found))


# The report


def test_the_report_of_a_kernel_has_every_figure_with_its_source():
    kernel = counters(
        name="void (anonymous namespace)::gather<float, 4>(float const*, float*)",
        global_loads=access(0.125, 32000),
        shared_loads=shared(500),
        stalls=stalls(long_scoreboard=61.2, barrier=20.5),
        eligible_warps=0.4,
        active_warps=9.5,
        occupancy_theoretical_percent=50.0,
        occupancy_achieved_percent=43.2,
        occupancy_limiter="registers",
        waves=1.45,
        dram_read_bytes=10_000_000,
        dram_write_bytes=0,
        dram_read_gb_per_s=1000.0,
        flops_by_dtype={"float32": 10**8},
    )
    profile = KernelProfile(counters=kernel, time_class=_classes.of_kernel(kernel))
    result = made(
        kernels=(profile,),
        counters_source="Nsight Compute",
        time_class=_classes.of_call(None, [profile], None, None),
        counter_light=_classes.counter_light([kernel]),
    )
    said = str(result.model_copy(update={"hints": _hints.hints(result)}))
    for words in (
        "class     memory-bound",
        "(by counters)",
        "gather: memory-bound, 10.0 us",
        "████████████········   60.0 %  1000 GB/s read, not measured written",
        "32.0 sectors a request, ideal 4.00 for 4.00 bytes a lane: efficiency 12.5 %",
        "1000 wavefronts, 50.0 % of them by conflicts",
        "stall long_scoreboard",
        "of 50.0 % possible, by registers",
        "0.400 of 9.50 a scheduler could issue",
        "100 MFLOP, 10.0 a byte of DRAM",
        "speed of light 60.0 % of peak: multiprocessors 50.0 %, memory 60.0 %",
        "bank conflicts in gather: 50.0 % of the wavefronts in shared memory are added by",
        "time      not measured",
    ):
        assert words in said, words
    assert max(map(len, said.splitlines())) <= 100
