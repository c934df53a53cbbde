"""Profiles of kernels that were written to be what they are found to be, on a GPU.

    KEEP_PROFILES=build/profiles python tests/test_profile_gpu.py

runs all of it and keeps the raw pages, with expected.json, which go to tests/data/profile; with
`-k "not sanitizers"` it is the quicker part. Where counters cannot be read, as in most containers,
the tests that need them are skipped with the reason that the profile gives.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from profile_cases import impossible, own
from submissions import gather_linear, problem

from kernelbench_dist.harness import (
    ProfileResult,
    Verdict,
    disassemble,
    get_gpu_specs,
    profile_kernel,
    sanitize,
)
from kernelbench_dist.harness._submit import function_name
from kernelbench_dist.harness.profile._results import KernelProfile
from kernelbench_dist.harness.profile._tools import find_tool

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(600)]

KEPT = os.environ.get("KEEP_PROFILES")
FUSED = gather_linear(
    "return ops.all_gather_linear(x, self.proj.weight, self.proj.bias)",
    before="from kernelbench_dist import ops\n",
)


@dataclass(frozen=True)
class Case:
    """A submission, its problem, and what a profile must say.

    by_time: the class of the call; by_counters: that of its longest kernel.
    """

    source: str
    problem: str
    by_time: str | None = None
    by_counters: str | None = None
    launches: int | None = None
    rules: tuple[str, ...] = ()
    not_rules: tuple[str, ...] = ()


BAD = ("uncoalesced loads", "uncoalesced stores", "bank conflicts", "local memory")


def but(*kept: str) -> tuple[str, ...]:
    return tuple(rule for rule in BAD if rule not in kept)


CASES = {
    "fused": Case(FUSED, "47", by_time="launch-bound", launches=1, not_rules=("local memory",)),
    "cat_linear": Case(gather_linear(), "47", rules=(), not_rules=("local memory",)),
    "empty": Case(
        own("nothing"), problem("x", "torch.randn(32)"), by_time="launch-bound", launches=1
    ),
    "stream_wide": Case(
        own("stream_wide"),
        problem("2 * x", "torch.randn(1 << 24)"),
        by_time="memory-bound",
        by_counters="memory-bound",
        launches=1,
        not_rules=BAD,
    ),
    "strided": Case(
        own("strided"),
        problem("(2 * x).t().contiguous()", "torch.randn(4096, 4096)"),
        by_counters="memory-bound",
        launches=1,
        rules=("uncoalesced loads",),
        not_rules=but("uncoalesced loads"),
    ),
    "conflicts": Case(
        own("conflicts"),
        problem(
            "x.sum(-1).unsqueeze(1).expand(-1, 32, -1).contiguous()", "torch.randn(4096, 32, 32)"
        ),
        by_counters="memory-bound",
        launches=1,
        rules=("bank conflicts",),
        not_rules=but("bank conflicts"),
    ),
    "spills": Case(
        own("spills"),
        problem("x * x[(torch.arange(40) * 7 + 3) % 40]", "torch.randn(40, 1 << 18)"),
        launches=1,
        rules=("local memory",),
        not_rules=but("local memory"),
    ),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("profiles")


@cache
def profile(name: str, files: Path) -> ProfileResult:
    """Each is profiled once."""
    case = CASES[name]
    of = case.problem
    if "\n" in of:
        path = files / f"{name}_problem.py"
        path.write_text(of)
        of = str(path)
    folder = Path(KEPT) if KEPT else files
    folder.mkdir(parents=True, exist_ok=True)
    result = profile_kernel(case.source, of, device="cuda", keep=folder / f"{name}.csv")
    print(result)
    if KEPT:
        (folder / f"{name}.json").write_text(result.to_json(indent=1))
        table = folder / "expected.json"
        expected = json.loads(table.read_text()) if table.exists() else {}
        expected[name] = {
            **({"launches": case.launches} if case.launches else {}),
            **({"class": case.by_counters} if case.by_counters else {}),
            "rules": [rule for rule in case.rules if rule in BAD],
            "not_rules": list(case.not_rules),
        }
        table.write_text(json.dumps(expected, indent=1) + "\n")
    return result


def counted(name: str, files: Path) -> tuple[ProfileResult, KernelProfile]:
    """With its longest kernel; skips where there are no counters."""
    result = profile(name, files)
    if not result.kernels:
        pytest.skip(f"no counters: {result.counters_absent}")
    return result, max(result.kernels, key=lambda k: k.counters.time_us or 0.0)


@pytest.fixture(params=list(CASES))
def name(request) -> str:
    return request.param


def test_it_is_right_and_has_the_launches_that_it_makes(name, files):
    result, case = profile(name, files), CASES[name]
    assert result.passed, result.reason
    assert result.times.method == "graph"
    assert result.launches_per_call >= 1
    assert result.launches_per_call == int(result.launches_per_call)
    if case.launches is not None:
        assert result.launches_per_call == case.launches
    kernels = [a for a in result.activity if a.kind == "kernel"]
    assert all(a.grid and a.block and a.us_per_call > 0 for a in kernels)
    if case.by_time:
        assert result.time_class.name == case.by_time, result.time_class.because


def test_two_profilers_count_the_same_launches(name, files):
    """Those of cat + Linear are as many as device kernels that Nsight Compute has seen."""
    result, _ = counted(name, files)
    assert len(result.kernels) == result.launches_per_call


def test_no_figure_is_impossible(name, files):
    result, _ = counted(name, files)
    for kernel in result.kernels:
        assert impossible(kernel.counters) == []
        assert kernel.counters.stalls
        assert sum(s.percent for s in kernel.counters.stalls) == pytest.approx(100)
        for unit in ("dram_percent", "l2_percent", "l1_percent", "registers_per_thread"):
            assert getattr(kernel.counters, unit) is not None, unit
    assert 0 < result.roofline_light.fraction <= 1.05
    assert 0 <= result.counter_light.percent <= 105


def test_the_class_and_the_hints_are_those_that_it_was_written_for(name, files):
    result, longest = counted(name, files)
    case = CASES[name]
    if case.by_counters:
        assert longest.time_class.name == case.by_counters, longest.time_class.because
    rules = {hint.rule for hint in result.hints}
    assert rules >= set(case.rules)
    assert not rules.intersection(case.not_rules), result.hints


def test_wide_loads_are_coalesced_and_at_the_memory_s_pace(files):
    _, kernel = counted("stream_wide", files)
    loads = kernel.counters.global_loads
    assert loads.sectors_per_request == pytest.approx(16, rel=0.02)
    assert loads.bytes_per_lane == pytest.approx(16, rel=0.02)
    assert loads.efficiency == pytest.approx(1, rel=0.02)
    assert kernel.counters.dram_read_bytes == pytest.approx(4 << 24, rel=0.05)


def test_strided_loads_take_a_sector_for_each_lane(files):
    _, kernel = counted("strided", files)
    assert kernel.counters.global_loads.sectors_per_request == pytest.approx(32, rel=0.02)
    assert kernel.counters.global_loads.efficiency == pytest.approx(1 / 8, rel=0.02)
    assert kernel.counters.global_stores.efficiency == pytest.approx(1, rel=0.02)


def test_a_column_of_a_tile_takes_32_wavefronts(files):
    _, kernel = counted("conflicts", files)
    loads = kernel.counters.shared_loads
    assert loads.conflict_share == pytest.approx(31 / 32, rel=0.05)


def test_spills_go_through_local_memory(files):
    _, kernel = counted("spills", files)
    assert kernel.counters.registers_per_thread == 32
    assert kernel.counters.local_loads.sectors > 0


def test_machine_code_of_the_same_build(files):
    if find_tool("cuobjdump") is None:
        pytest.skip("there is no cuobjdump")
    result = disassemble(own("spills"), problem_file(files), device="cuda")
    assert result.passed, result.reason
    kernels = {function_name(k.name): k for k in result.kernels}
    assert kernels["spills"].local_stores > 0
    assert kernels["spills"].spill_store_bytes > 0
    assert kernels["stream_wide"].local_stores == 0
    assert kernels["stream_wide"].global_loads_by_bits == {128: 1}
    assert kernels["conflicts"].barriers == 1


def problem_file(files: Path, forward: str = "2 * x", inputs: str = "torch.randn(1024)") -> str:
    path = files / "small.py"
    path.write_text(problem(forward, inputs))
    return str(path)


@pytest.mark.parametrize(
    ("name", "tool", "verdict"),
    [
        ("past_the_end", "memcheck", Verdict.RUNTIME_ERROR),
        ("races", "racecheck", Verdict.NONDETERMINISTIC),
        ("stream_wide", "memcheck", Verdict.PASSED),
    ],
)
def test_sanitizers(files, name, tool, verdict):
    result = sanitize(own(name), problem_file(files), device="cuda", tools=[tool])
    (check,) = result.checks
    if check.errors is None:
        pytest.skip(check.reason)
    print(result)
    assert check.verdict is verdict
    if verdict is not Verdict.PASSED:
        assert name in check.findings[0].kernel


def test_specs_are_measured_once_and_below_the_datasheet():
    specs = get_gpu_specs()
    assert specs.passed, specs.reason
    assert get_gpu_specs() is specs
    print(specs)
    rates = {rate.name: rate.rate for rate in specs.measured}
    assert set(rates) == {"copy", "float16", "bfloat16", "tf32", "float32", "float64"}
    if specs.datasheet is not None:
        assert 0.5 * specs.datasheet_bytes_per_s < rates["copy"] <= specs.datasheet_bytes_per_s
        for dtype, peak in specs.datasheet_flops_per_s.items():
            assert 0.3 * peak < rates[dtype] <= 1.05 * peak, dtype
    assert specs.empty_kernel_us > 0


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-s", "--tb=short", *sys.argv[1:]]))
