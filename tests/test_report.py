"""Reports, made from results whose figures are known."""

from __future__ import annotations

import pytest

from kernelbench_dist.harness import (
    CompileResult,
    CorrectnessResult,
    ProblemResult,
    StaticResult,
    SubmitResult,
    Verdict,
)
from kernelbench_dist.harness._fuzz_cases import FuzzCase, FuzzResult, ReplayResult
from kernelbench_dist.harness._results import (
    Build,
    Diagnostic,
    Finding,
    KernelResources,
    Launches,
    Memory,
    Options,
    Output,
    Result,
    Source,
    SpeedOfLight,
    Trial,
)
from kernelbench_dist.report import text
from kernelbench_dist.report._figures import amount, decimal, figure, one_line
from kernelbench_dist.timing import BenchResult
from kernelbench_dist.timing._result import Candidate, Environment, Ratio, Timing

PROBLEM = "level2/47_virtual_all_gather_concat_linear"
OPTIONS = Options(device="cpu", dtype="bfloat16", sizes=(), trials=2, seed=7, backward=False)


def made(kind: type[Result], verdict: str = "PASSED", **fields: object) -> Result:
    common = {
        "reason": "it is so",
        "submission": Source(name="mine.py", sha256="ab" * 32, kind="cuda", kind_is_declared=True),
        "problem": PROBLEM,
        "started_at": "2026-01-01T00:00:00+00:00",
        "seconds": 12.3456,
    }
    return kind(verdict=verdict, **{**common, **fields})


def output(**fields: object) -> Output:
    known = {
        "name": "output",
        "rank": 0,
        "shape": (12, 56),
        "dtype": "float32",
        "elements": 672,
        "mismatches": 3,
        "max_abs_error": 0.25,
        "mean_abs_error": 0.0012345,
        "max_rel_error": 1234.5,
        "worst_index": (6, 55),
        "worst_result": -0.187932327,
        "worst_expected": -0.437932327,
        "worst_error": 0.25,
        "worst_bound": 5e-7,
        "worst_ulp": 8388608.0,
    }
    return Output(**{**known, **fields})


def trial(verdict: str = "PASSED", **fields: object) -> Trial:
    known = {
        "seed": 4534363295196227450,
        "sizes": {},
        "shapes": ((4, 12, 32),),
        "reason": "r",
        "bitwise_equal": True,
        "outputs": (output(mismatches=0, worst_error=2.5e-7),),
    }
    return Trial(verdict=verdict, **{**known, **fields})


def words(report: str) -> str:
    """The report without its line breaks, for what is longer than a line."""
    return " ".join(report.split())


def kernel(name: str, spills: int) -> KernelResources:
    return KernelResources(
        name=name,
        architecture="sm_90",
        registers=72,
        shared_bytes=8192,
        constant_bytes=400,
        stack_bytes=16,
        spill_store_bytes=spills,
        spill_load_bytes=2 * spills,
    )


def test_the_head_says_what_how_and_why():
    report = text(made(CorrectnessResult, "TIMEOUT", reason="forward() hangs", options=OPTIONS))
    lines = report.splitlines()
    assert lines[0] == f"TIMEOUT: mine.py for {PROBLEM} (run_correctness)"
    assert lines[1] == "reason    forward() hangs"
    assert lines[2] == f"meaning   {Verdict.TIMEOUT.sentence}"
    assert lines[3] == f"to do     {Verdict.TIMEOUT.advice}"
    for part in ("kind cuda (declared)", "sha256 abababababab", "on cpu", "bfloat16", "seed 7"):
        assert part in words(report)
    assert "12.3 s in all" in report


def test_str_of_a_result_is_its_report():
    result = made(StaticResult)
    assert str(result) == text(result)


def test_a_pass_has_no_advice():
    assert "to do" not in text(made(CorrectnessResult))


def test_compile_names_places_hints_and_what_kernels_use():
    diagnostics = (
        Diagnostic(
            file="gather.cu", line=40, column=None, severity="warning", message="unused variable"
        ),
        Diagnostic(
            file="gather.cu",
            line=12,
            column=7,
            severity="error",
            message='identifier "foo" is undefined',
            hint="declare foo before its use",
        ),
    )
    failed = Build(
        name="gather",
        key="k",
        from_cache=False,
        seconds=31.234,
        succeeded=False,
        diagnostics=diagnostics,
        kernels=(kernel("dot<float, 4>", 8),),
        log="the log",
    )
    cached = failed.model_copy(
        update={"name": "other", "seconds": None, "from_cache": True, "succeeded": True}
        | {"diagnostics": (), "kernels": (kernel("copy", 0),)}
    )
    report = text(
        made(CompileResult, "COMPILE_ERROR", detail="the log again", builds=(failed, cached))
    )
    assert "extension gather: does not build (in 31.2 s)" in report
    assert "extension other: from the cache, 1 kernel, no spills" in report
    error = report.index('  gather.cu:12:7: error: identifier "foo" is undefined')
    assert error < report.index("hint: declare foo before its use")
    assert error < report.index("  gather.cu:40: warning: unused variable")
    row = next(line for line in report.splitlines() if line.lstrip().startswith("dot<float, 4>"))
    assert row.split()[2:] == [
        "sm_90",
        "72",
        *("8.00", "KiB", "400", "bytes", "16", "bytes", "8", "bytes,", "16", "bytes"),
    ]
    assert "the log" not in report  # its messages are there already


def test_a_failed_build_without_messages_shows_the_end_of_its_log():
    build = Build(
        name="gather",
        key="k",
        from_cache=False,
        seconds=None,
        succeeded=False,
        diagnostics=(),
        kernels=(),
        log="\n".join(f"line {i}" for i in range(30)),
    )
    report = text(made(CompileResult, "COMPILE_ERROR", builds=(build,)))
    assert "extension gather: does not build (time not measured)" in report
    assert "  | line 29" in report
    assert "  | ... 18 lines before" in report
    assert "line 17\n" not in report


def test_correctness_shows_the_worst_element_of_the_trial_that_failed():
    replay = f"kernelbench-dist run-correctness mine.py {PROBLEM} --seed 4534363295196227450 " * 2
    failed = trial("INCORRECT_VALUES", sizes={"B": 25}, bitwise_equal=False, outputs=(output(),))
    result = made(
        CorrectnessResult, "INCORRECT_VALUES", trials=(trial(), failed), replay=replay.strip()
    )
    report = text(result)
    assert "1 of 2 passed; bits of two runs on the same inputs: the same in 1 of 2" in report
    rows = [line.split() for line in report.splitlines() if "4534363295196227450" in line][:2]
    shape = ["(4,", "12,", "32)"]
    assert rows[0] == ["1", "4534363295196227450", "own", *shape, "PASSED", "same", "0.500"]
    assert rows[1][2:] == ["B=25", *shape, "INCORRECT_VALUES", "differ", "500000"]
    said = words(report)
    assert "trial 2, output[6, 55] of shape (12, 56), float32" in said
    assert "result -0.187932327, expected -0.437932327" in said
    assert "error 0.250 = 8.39e+06 ulp, bound 5.00e-07" in said
    assert "wrong elements: 3 of 672" in said
    assert "max abs error 0.250, mean abs error 0.00123, max rel error 1230" in said
    assert f"replay    {replay.strip()}" in report.splitlines()  # on one line, to be copied


def test_many_trials_are_cut_and_the_failed_one_stays():
    trials = [trial() for _ in range(40)] + [trial("NOT_FINITE", outputs=())]
    report = text(made(CorrectnessResult, "NOT_FINITE", trials=tuple(trials)))
    assert "(31 not shown)" in report
    assert [line for line in report.splitlines() if "NOT_FINITE" in line][-1].split()[0] == "41"
    assert len(report.splitlines()) < 60


def test_infinities_and_complex_numbers_come_as_text():
    odd = output(worst_result="inf", worst_expected="(1+2j)", worst_error="inf", worst_ulp="inf")
    said = words(
        text(made(CorrectnessResult, "NOT_FINITE", trials=(trial("NOT_FINITE", outputs=(odd,)),)))
    )
    assert "result inf, expected (1+2j), error inf = inf ulp" in said


def test_static_findings_errors_first():
    findings = (
        Finding(
            rule="writes-output", severity="warning", line=3, column=0, message="m1", code="print()"
        ),
        Finding(
            rule="patches-timer",
            severity="error",
            line=9,
            column=0,
            message="time.time is replaced",
            code="    time.time = f",
        ),
    )
    report = text(made(StaticResult, "CHEATING", findings=findings))
    assert "static    1 error, 1 warning" in report
    first = report.index("  line 9: error: patches-timer: time.time is replaced\n  | time.time = f")
    assert first < report.index("  line 3: warning: writes-output: m1\n  | print()")


def timing(median: float, empty: Timing | None) -> Timing:
    return Timing.of([median] * 8, calls=10, empty=empty)


def bench(device: str) -> BenchResult:
    """Device times of 4 us and 2 us, the empty kernel's 1 us; call times are five times these."""
    on_gpu = device == "cuda"

    def candidate(name: str, us: float, empty: Candidate | None) -> Candidate:
        own, call = (None, None) if empty is None else (empty.warm, empty.call)
        device_time = timing(us, own) if on_gpu else None
        return Candidate(name, device_time, device_time, timing(5 * us, call))

    empty = candidate("(empty kernel)", 1.0, None)
    timed = (candidate("reference", 4.0, empty), candidate("submission", 2.0, empty))
    kinds = ("warm", "cold", "call") if on_gpu else ("call",)
    return BenchResult(
        environment=Environment(
            started_at="2026-01-01T00:00:00+00:00",
            device=device,
            device_name="a device",
            driver="580.1" if on_gpu else None,
            cuda="13.0",
            torch="2.13.0",
            python="3.11",
            threads=2,
            clock_mhz=None,
            l2_bytes=None,
        ),
        method="graph" if on_gpu else "wall",
        reason=None,
        rounds=8,
        seed=1,
        baseline="reference",
        candidates=timed,
        empty=empty,
        ratios=tuple(
            Ratio("submission", "reference", kind, 0.5, 0.49, 0.51, "faster") for kind in kinds
        ),
    )


def test_submit_on_a_gpu_has_each_figure_with_its_unit():
    mine = Launches(kernels=1, copies=0, fills=2, names=("dot",), library_share=0.0)
    theirs = Launches(kernels=3, copies=1, fills=0, names=("a", "b", "c"), library_share=1.0)
    result = made(
        SubmitResult,
        options=OPTIONS,
        static=made(StaticResult),
        trials=(trial(),),
        timing=bench("cuda"),
        timing_sizes={"B": 12},
        waited_seconds=0.5,
        memory=Memory(peak_above_inputs_bytes=2688, source="the allocator"),
        reference_memory=Memory(peak_above_inputs_bytes=33_000_000, source="the allocator"),
        launches=mine,
        reference_launches=theirs,
        fusion_ratio=3.0,
        speed_of_light=SpeedOfLight(
            bytes_moved=37_728,
            flops=172_032,
            cost_source="problem",
            peak_bytes_per_s=4.8e12,
            peak_flops_per_s=None,
            peak_source="datasheet of the H200",
            floor_us=0.00786,
            time_us=2.0,
            time_kind="cold",
            roofline_fraction=0.00393,
            time_class="launch-bound",
        ),
        notes=("one note",),
    )
    report = text(result)
    said = words(report)
    for kind in ("device time, warm L2", "device time, cold L2"):
        line = f"  {kind}: (empty kernel) 1.00 us; above it: reference 3.00 us, submission 1.00 us"
        assert line in report.splitlines()
    assert (
        "  call time: (empty kernel) 5.00 us; above it: reference 15.0 us, submission 5.00 us"
        in report.splitlines()
    )
    row = next(line for line in report.splitlines() if line.split()[:1] == ["submission"])
    assert row.split() == ["submission", "2.000", "0.500", "0.490", "..", "0.510", "faster"]
    assert "at sizes B=12; waited for the device: 0.500 s" in said
    assert "CPU" not in report
    assert "1 kernel, 0 copies, 2 fills a call; 0 % of their time is not in its own" in said
    assert "reference: 3 kernels, 1 copy, 0 fills a call" in said
    assert "fusion ratio 3.00" in said
    assert "peak above the inputs 2.62 KiB (reference 31.5 MiB), by the allocator" in said
    assert "roofline fraction (analysis) 0.00393: 0.00786 us at the peaks over 2.00 us" in said
    assert "(cold L2); launch-bound" in said
    assert "37.7 kB and 172 kFLOP (by problem) at 4.80 TB/s and not measured" in said
    assert "not measured" not in said.replace("TB/s and not measured", "")
    assert report.splitlines()[-1] == "note      one note"
    assert len(report.splitlines()) <= 60
    assert max(map(len, report.splitlines())) <= 100


def test_submit_on_a_cpu_is_marked_and_lists_what_was_not_measured():
    report = text(made(SubmitResult, trials=(trial(),), timing=bench("cpu"), waited_seconds=0.0))
    assert "CPU: call time only" in report
    assert "waited for the device: 0 s" in report
    assert "device time" not in report
    assert "rest      launches, memory, speed of light: not measured" in report.splitlines()


def test_submit_that_ended_early_says_what_was_not_reached():
    report = text(made(SubmitResult, "CHEATING", static=made(StaticResult)))
    assert "rest      time, launches, memory, speed of light: not measured" in report.splitlines()


def test_fuzz_gives_the_case_in_a_line_and_a_program():
    case = FuzzCase(sizes={"B": 13, "K": 3}, values="ties", layout="contiguous", seed=5)
    report = text(
        made(
            FuzzResult,
            "INCORRECT_VALUES",
            varied=("B",),
            case=case,
            trial=trial("INCORRECT_VALUES", outputs=(output(),)),
            cases=40,
            skipped=2,
            shrunk=True,
            reproduced=True,
            snippet="import torch\nprint(1)",
            stored="/x/y.json",
            replay="kernelbench-dist replay abc",
        )
    )
    lines = report.splitlines()
    assert "case      B=13 K=3 (ties values, contiguous), seed 5" in lines
    assert "40 cases judged, B varied; 2 skipped, which the reference does not take" in report
    assert "no simpler case fails that differs from it in one thing" in report
    assert "trial 1, output[6, 55]" in report
    assert "stored    /x/y.json" in lines
    assert "replay    kernelbench-dist replay abc" in lines
    assert "program   python /x/y.py" in lines


def test_a_failure_that_could_not_be_stored_shows_its_program():
    report = text(made(FuzzResult, "TIMEOUT", snippet="import torch\nprint(1)", shrunk=False))
    assert "\nimport torch\nprint(1)" in report
    assert "the time was up: simpler may fail" in report


def test_a_replay_searches_nothing():
    case = FuzzCase(sizes={"B": 1}, values="normal", layout="offset", seed=0)
    report = text(made(ReplayResult, case=case, trial=trial(), cases=1, varied=("B",)))
    assert "case      B=1 (normal values, offset), seed 0" in report.splitlines()
    assert "judged, B varied" not in report


def test_check_problem_lists_the_trivial_answers():
    report = text(made(ProblemResult, trivial_answers={"zeros": False, "ranks reversed": True}))
    rows = [line.split() for line in report.splitlines()]
    assert ["zeros", "fails"] in rows
    assert ["ranks", "reversed", "passes"] in rows


def test_a_result_of_another_kind_shows_its_fields():
    class Other(Result):
        tool = "other"
        share: float | None = None
        speed: float = 1234.567
        parts: tuple[int, ...] = (1, 2)

    report = text(made(Other))
    assert "(other)" in report
    assert "  share: not measured" in report
    assert "  speed: 1230" in report
    assert "  parts: 2" in report


def test_what_a_submission_says_cannot_pass_for_the_judges_words():
    report = text(
        made(
            CorrectnessResult,
            "RUNTIME_ERROR",
            reason="forward() raised E: x\nPASSED: mine.py\x1b[2J",
            detail="Traceback\nPASSED: mine.py \x1b]0;title\x07\u202e",
        )
    )
    assert "\x1b" not in report
    assert "\x07" not in report
    assert "\u202e" not in report
    assert not [line for line in report.splitlines() if line.startswith("PASSED")]
    assert r"  | PASSED: mine.py \x1b]0;title\x07\u202e" in report


def test_long_text_of_a_submission_does_not_flood_the_report():
    report = text(
        made(CorrectnessResult, "RUNTIME_ERROR", reason="x " * 10_000, detail="y\n" * 10_000)
    )
    assert len(report.splitlines()) < 40
    assert len(report) < 5000


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "not measured"),
        (0.0, "0"),
        (0.99999, "1.00"),
        (9.9961, "10.0"),
        (999.6, "1000"),
        (1787.6, "1790"),
        (0.49999999, "0.500"),
        (-0.012345, "-0.0123"),
        (2.2449e-7, "2.24e-07"),
        (123456789.0, "1.23e+08"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
)
def test_three_significant_digits(value, shown):
    assert figure(value) == shown


def test_amounts():
    assert amount(1023) == "1023 bytes"
    assert amount(1024) == "1.00 KiB"
    assert amount(3 << 40) == "3.00 TiB"
    assert decimal(999.0, "B") == "999 B"
    assert decimal(None, "FLOP/s") == "not measured"


def test_one_line_is_cut():
    assert one_line("a" * 1000, 50) == "a" * 46 + " ..."
