"""Machine code, sanitizers' reports, and what a GPU can do: read and said without a GPU.

tests/data/profile/sass.txt and usage.txt are what cuobjdump printed of kernels.cu. The reports of
compute-sanitizer here are written by hand in its form; test_profile_gpu.py has real ones.
"""

from __future__ import annotations

import json
import sys

import pytest
import torch
from profile_cases import DATA
from submissions import gather_linear

from kernelbench_dist import cli
from kernelbench_dist.harness import (
    DisassembleResult,
    GpuSpecs,
    SanitizeResult,
    Verdict,
    get_gpu_specs,
    sanitize,
)
from kernelbench_dist.harness._results import KernelResources
from kernelbench_dist.harness.profile import _sanitize
from kernelbench_dist.harness.profile._results import MeasuredRate
from kernelbench_dist.harness.profile._sanitize import read_report, verdict_of
from kernelbench_dist.harness.profile._sass import function_names, read_sass
from kernelbench_dist.report import text

SASS = (DATA / "sass.txt").read_text()
USAGE = (DATA / "usage.txt").read_text()
NAMES = {
    "_Z6spillsPKfPf": "spills(float const*, float*)",
    "_Z5asyncPK6float4PS_": "async(float4 const*, float4*)",
    "_Z7reversePKfPfi": "reverse(float const*, float*, int)",
    "_Z5bytesPKhPti": "bytes(unsigned char const*, unsigned short*, int)",
    "_Z4widePK6float4PS_i": "wide(float4 const*, float4*, int)",
}
# What the assembler of this build said.
BUILT = KernelResources(
    name=NAMES["_Z6spillsPKfPf"],
    architecture="sm_90a",
    registers=32,
    shared_bytes=0,
    constant_bytes=544,
    stack_bytes=88,
    spill_store_bytes=96,
    spill_load_bytes=96,
)


@pytest.fixture(scope="module")
def kernels():
    found = read_sass(SASS, USAGE, [BUILT], NAMES)
    return {kernel.name.partition("(")[0]: kernel for kernel in found}


def test_all_kernels_are_found_with_their_architecture(kernels):
    assert function_names(SASS) == list(NAMES)
    assert {kernel.architecture for kernel in kernels.values()} == {"sm_90a"}
    assert all(kernel.instructions > 10 for kernel in kernels.values())


def test_widths_are_those_that_the_source_has(kernels):
    assert kernels["wide"].global_loads_by_bits == {128: 1}
    assert kernels["wide"].global_stores_by_bits == {128: 1}
    assert kernels["bytes"].global_loads_by_bits == {8: 1}
    assert kernels["bytes"].global_stores_by_bits == {16: 1}
    reverse = kernels["reverse"]
    assert (reverse.global_loads_by_bits, reverse.shared_stores_by_bits) == ({32: 1}, {32: 1})
    assert (reverse.shared_loads_by_bits, reverse.barriers) == ({32: 1}, 1)
    assert kernels["async"].async_copies == 1
    assert kernels["async"].barriers == 1
    assert kernels["wide"].async_copies == kernels["wide"].tensor_instructions == 0


def test_spills_are_in_the_code_and_in_what_the_assembler_said(kernels):
    spills = kernels["spills"]
    assert spills.global_loads_by_bits == {32: 40}
    assert spills.global_stores_by_bits == {32: 40}
    # 96 bytes of each, 4 at a time.
    assert (spills.local_stores, spills.local_loads) == (24, 24)
    assert (spills.spill_store_bytes, spills.spill_load_bytes) == (96, 96)
    assert (spills.registers, spills.stack_bytes) == (32, 88)


def test_what_is_not_known_is_none(kernels):
    assert kernels["wide"].spill_store_bytes is None
    (first, *_) = read_sass(SASS)
    assert first.registers is None
    assert read_sass("") == ()


def test_registers_and_shared_memory(kernels):
    assert {name: k.registers for name, k in kernels.items()} == {
        "spills": 32, "async": 16, "reverse": 10, "bytes": 10, "wide": 14,
    }  # fmt: skip
    # 1 KiB of it is the system's.
    assert kernels["reverse"].shared_bytes == 1024 + 1024


def made(kind, verdict="PASSED", **fields):
    known = {"reason": "so it is", "started_at": "2026-01-01T00:00:00+00:00", "seconds": 1.0}
    return kind(verdict=verdict, **{**known, **fields})


def test_the_report_of_machine_code(kernels):
    result = made(DisassembleResult, kernels=tuple(kernels.values()))
    said = text(result)
    assert "96 bytes, 96 bytes" in said
    assert "1 of 128" in said
    assert "not known" in said
    assert DisassembleResult.from_dict(json.loads(result.to_json())) == result


def test_a_submission_that_builds_nothing_has_no_machine_code(tmp_path, capsys):
    source = tmp_path / "mine.py"
    source.write_text(gather_linear())
    assert cli.main(["disassemble", str(source), "47", "--device", "cpu", "--json"]) == 0
    result = DisassembleResult.from_dict(json.loads(capsys.readouterr().out))
    assert result.kernels == ()
    assert "it builds no extension" in result.reason


# Sanitizers

MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at past_the_end(float *, int)+0x90
=========     by thread (31,0,0) in block (3,0,0)
=========     Access at 0x7f2a00000200 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2a00000000 of size 512 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at 0x90 in past_the_end(float *, int)+0x90
=========     by thread (30,0,0) in block (3,0,0)
=========     Access at 0x7f2a000001fc is out of bounds
=========
========= ERROR SUMMARY: 2 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at races(float *)+0x130
=========     and Read access at races(float *)+0x170 [124 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def test_reports_of_memcheck():
    errors, findings = read_report(MEMCHECK)
    assert errors == 2
    assert [f.kernel for f in findings] == ["past_the_end(float *, int)"] * 2
    assert findings[0].what == "Invalid __global__ write of size 4 bytes"
    assert "1 bytes after the nearest allocation" in findings[0].detail
    check = verdict_of("memcheck", errors, findings, "its process was killed")
    assert check.verdict is Verdict.RUNTIME_ERROR
    assert check.reason == (
        "2 report(s) of accesses out of bounds or misaligned: Invalid __global__ write of size 4 "
        "bytes, in past_the_end(float *, int)"
    )


def test_reports_of_racecheck():
    errors, (finding,) = read_report(RACECHECK)
    assert errors == 1
    assert finding.kernel == "races(float *)"
    assert verdict_of("racecheck", errors, [finding], None).verdict is Verdict.NONDETERMINISTIC


def test_what_was_not_printed_is_not_counted_twice():
    more = "========= ERROR SUMMARY: 157 errors were not printed. Use --print-limit option\n"
    many = MEMCHECK.replace("2 errors", "257 errors") + more
    assert read_report(many)[0] == 257


def test_warnings_of_races_are_told_and_fail_nothing():
    only = RACECHECK.replace("Error: Race", "Warning: Race").replace(
        "(1 error, 0 warnings)", "(0 errors, 1 warning)"
    )
    errors, findings = read_report(only)
    assert (errors, len(findings)) == (0, 1)
    check = verdict_of("racecheck", errors, findings, None)
    assert check.verdict is Verdict.PASSED
    assert check.reason == "no races in shared memory, and 1 warning(s)"


def test_a_kernel_is_named_also_on_a_line_of_its_own():
    parts = "Write access at\n=========     races(float *)+0xb0 in debug.cu:28"
    broken = RACECHECK.replace("Write access at races(float *)+0x130", parts)
    assert read_report(broken)[1][0].kernel == "races(float *)"


def test_a_clean_report_passes_and_none_is_no_answer():
    clean = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
    assert read_report(clean) == (0, ())
    assert verdict_of("memcheck", 0, (), None).verdict is Verdict.PASSED
    assert read_report("========= COMPUTE-SANITIZER\nDevice not supported\n") == (None, ())
    absent = verdict_of("synccheck", None, (), "a worker does not start")
    assert absent.verdict is Verdict.ENVIRONMENT_ERROR
    assert absent.errors is None
    assert "a worker does not start" in absent.reason


def test_a_clean_report_of_a_call_that_failed_does_not_pass():
    assert verdict_of("memcheck", 0, (), "forward() raised").verdict is Verdict.RUNTIME_ERROR


def test_what_was_found_comes_before_what_could_not_run():
    checks = [
        verdict_of("memcheck", None, (), None),
        verdict_of("racecheck", 1, (), None),
    ]
    with pytest.raises(_sanitize.JudgedError) as stopped:
        _sanitize._judge(checks)
    assert stopped.value.verdict is Verdict.NONDETERMINISTIC


def test_without_a_gpu_every_check_says_why_it_did_not_run(tmp_path, capsys):
    source = tmp_path / "mine.py"
    source.write_text(gather_linear())
    tools = ["--tool", "memcheck", "--tool", "synccheck"]
    assert cli.main(["sanitize", str(source), "47", "--device", "cpu", "--json", *tools]) == 3
    result = SanitizeResult.from_dict(json.loads(capsys.readouterr().out))
    assert result.verdict is Verdict.ENVIRONMENT_ERROR
    assert [c.tool for c in result.checks] == ["memcheck", "synccheck"]
    assert {c.errors for c in result.checks} == {None}
    assert "the device is cpu" in text(result)


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        (["leakcheck"], "tools hold 'leakcheck'; memcheck, racecheck, initcheck, synccheck are"),
        ([], "tools are empty"),
        ("memcheck", "tools is 'memcheck'; a list of names is accepted"),
    ],
)
def test_tools_that_there_are_not(tools, said):
    with pytest.raises(ValueError, match=said):
        sanitize(gather_linear(), "47", device="cpu", tools=tools)


STAND_IN = """#!{python}
import os, subprocess, sys
arguments = sys.argv[1:]
log = arguments[arguments.index("--log-file") + 1]
start = arguments.index({python!r})
alone = os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1"
code = subprocess.call(arguments[start:])
open(log, "w").write({report!r} if alone and code == 0 else "")
"""


@pytest.fixture
def sanitizer(tmp_path, monkeypatch):
    """A stand-in that starts the worker, on the CPU, and writes a report made by hand."""

    def make(report: str) -> None:
        path = tmp_path / "compute-sanitizer"
        path.write_text(STAND_IN.format(python=sys.executable, report=report))
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        monkeypatch.setattr(_sanitize, "_missing", lambda device: None)

    return make


def test_a_sanitizer_runs_around_the_worker(sanitizer):
    sanitizer(MEMCHECK)
    result = sanitize(gather_linear(), "47", device="cpu", tools=["memcheck"])
    assert result.verdict is Verdict.RUNTIME_ERROR
    assert "in past_the_end(float *, int)" in result.reason
    assert result.checks[0].errors == 2
    assert "Access at 0x7f2a00000200 is out of bounds" in text(result)


@pytest.mark.slow
def test_a_sanitizer_that_refuses_the_device_is_quoted(sanitizer):
    sanitizer("========= COMPUTE-SANITIZER\n========= Device not supported\n")
    result = sanitize(gather_linear(), "47", device="cpu", tools=["memcheck"])
    assert result.verdict is Verdict.ENVIRONMENT_ERROR
    assert result.reason == "memcheck: it gave no summary: Device not supported"


# What a GPU can do


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_specs_say_so_and_what_is_known(capsys):
    result = get_gpu_specs()
    assert result.verdict is Verdict.ENVIRONMENT_ERROR
    assert "torch sees 0 CUDA device(s)" in result.reason
    assert result.measured == ()
    assert any(note.startswith("datasheet of the H200: 4.8 TB/s") for note in result.notes)
    assert cli.main(["gpu-specs", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["tool"] == "get_gpu_specs"


def test_specs_are_of_gpus():
    with pytest.raises(ValueError, match="device is 'cpu'; 'cuda' or 'cuda:N' is accepted"):
        get_gpu_specs("cpu")
    with pytest.raises(ValueError, match="device is 'tpu'"):
        get_gpu_specs("tpu")


def test_the_report_of_specs():
    result = made(
        GpuSpecs,
        device="cuda:0",
        device_name="NVIDIA H200",
        datasheet="datasheet of the H200",
        datasheet_bytes_per_s=4.8e12,
        datasheet_flops_per_s={"bfloat16": 1e15},
        measured=(
            MeasuredRate(name="copy", rate=3.6e12, unit="B/s", how="by hand"),
            MeasuredRate(name="bfloat16", rate=7.2e14, unit="FLOP/s", how="by hand"),
        ),
        ridge_points={"bfloat16": 200.0},
    )
    said = text(result)
    assert "75 %" in said
    assert "72 %" in said
    assert "200" in said
    assert "an empty kernel takes not measured" in said
