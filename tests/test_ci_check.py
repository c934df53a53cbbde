"""The check, in CI, of what was compiled: .ci/check_cuda_build.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PTXAS = """
ptxas info    : Compiling entry function '_Z4goodv' for 'sm_80'
ptxas info    : Function properties for _Z4goodv
    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
ptxas info    : Compiling entry function '_Z3badv' for 'sm_90a'
ptxas info    : Function properties for _Z3badv
    24 bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
"""
WHOLE = {"elf": ("sm_80", "sm_90", "sm_90a"), "ptx": ("sm_90",)}
SASS = """
\tcode for sm_90
\t\tFunction : _ZN1a10persistentIfEEv
        /*0010*/  BPT.TRAP 0x1 ;
\tcode for sm_90a
\t\tFunction : _ZN1a10persistentIfEEv
        /*0850*/  HGMMA.64x8x8.F32.TF32 R24, gdesc[UR12], R24 ;
\t\tFunction : _ZN1a5splitIfLi8EEEv
        /*0850*/  {} R24, R25, R26 ;
\t\tFunction : _ZN1a3dotIfEEv
        /*0850*/  FFMA R24, R25, R26 ;
"""


@pytest.fixture
def check_cuda_build(load_file, write, tmp_path, monkeypatch, capsys):
    """Runs the check on a log and on what cuobjdump lists; returns its exit code and its errors."""
    module = load_file(ROOT / ".ci" / "check_cuda_build.py")
    for name in ("csrc/cuda/a.cu", "csrc/cuda/b.cu", "kernelbench_dist/_C.x.so"):
        write("", name)

    def check(
        log: str, listed: dict[str, Any], sass: str = SASS.format("HGMMA.64x8x16.F32")
    ) -> tuple[int, str]:
        cases = [
            f"--list-{kind}) for n in {' '.join(names)}; do for f in 1 2; do"
            f" echo {kind.upper()} file $f: _C.$f.$n.{'cubin' if kind == 'elf' else 'ptx'};"
            " done; done ;;"
            for kind, names in listed.items()
        ]
        cases.append(f"-sass) cat {write(sass, 'sass')} ;;")
        script = "\n".join(["#!/bin/sh", 'case "$1" in', *cases, "esac", ""])
        write(script, "bin/cuobjdump").chmod(0o755)
        write(log, "log")
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin:/usr/bin")
        monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "log"), str(tmp_path)])
        return module.main(), capsys.readouterr().err

    return check


def test_a_whole_build_passes(check_cuda_build):
    assert check_cuda_build(PTXAS.format(stores=0, loads=0), WHOLE) == (0, "")


@pytest.mark.parametrize(("stores", "loads"), [(0, 8), (4, 0), (120, 96)])
def test_a_spill_fails(check_cuda_build, stores, loads):
    rc, errors = check_cuda_build(PTXAS.format(stores=stores, loads=loads), WHOLE)
    assert rc == 1
    assert errors == (
        f"error: _Z3badv for sm_90a spills registers: {stores} bytes stored, {loads} bytes loaded\n"
    )


def test_a_log_without_reports_fails(check_cuda_build):
    rc, errors = check_cuda_build("ninja: no work to do.", WHOLE)
    assert rc == 1
    assert "holds no report of ptxas" in errors


@pytest.mark.parametrize(
    ("listed", "error"),
    [
        ({**WHOLE, "elf": ("sm_80", "sm_90")}, "has machine code for sm_90a from 0 of 2"),
        ({**WHOLE, "elf": ("sm_90", "sm_90a")}, "has machine code for sm_80 from 0 of 2"),
        ({**WHOLE, "ptx": ("sm_80",)}, "has PTX for sm_90 from 0 of 2"),
    ],
)
def test_a_missing_architecture_fails(check_cuda_build, listed, error):
    rc, errors = check_cuda_build(PTXAS.format(stores=0, loads=0), listed)
    assert rc == 1
    assert error in errors
    assert errors.count("error:") == 1


@pytest.mark.parametrize(
    "sentence",
    [
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are",
        "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain",
    ],
)
def test_what_ptxas_says_of_wgmma_fails(check_cuda_build, sentence):
    rc, errors = check_cuda_build(PTXAS.format(stores=0, loads=0) + sentence + "\n", WHOLE)
    assert (rc, errors) == (1, f"error: {sentence}\n")


def test_a_kernel_without_wgmma_fails(check_cuda_build):
    log = PTXAS.format(stores=0, loads=0)
    rc, errors = check_cuda_build(log, WHOLE, SASS.format("FFMA"))
    assert (rc, errors) == (1, "error: _ZN1a5splitIfLi8EEEv for sm_90a has no wgmma in it\n")
    rc, errors = check_cuda_build(log, WHOLE, "")
    assert rc == 1
    assert "has no kernel for sm_90a that multiplies by wgmma" in errors
