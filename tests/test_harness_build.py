"""Builds of submissions: the cache, the launcher, what is missing, and real compilers."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from kernelbench_dist.harness.build import (
    BuildOutcome,
    BuildRequest,
    Environment,
    build,
    cache_key,
    current_environment,
    default_cache_dir,
    launch,
    load_built,
)
from kernelbench_dist.harness.build._cache import remove_leftovers
from kernelbench_dist.harness.build._environment import problem

needs_compiler = pytest.mark.skipif(
    shutil.which("c++") is None, reason="needs a C++ compiler, and there is no c++ on PATH"
)
needs_nvcc = pytest.mark.skipif(
    torch.version.cuda is None or shutil.which("nvcc") is None,
    reason="needs nvcc and a CUDA build of torch",
)
needs_any_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")

# Without torch's headers a build takes seconds.
LEAN = {"no_implicit_headers": True, "is_python_module": False}


def request(cpp: str | list[str] = "", **arguments: object) -> BuildRequest:
    return BuildRequest.from_load_inline("ext", cpp, **arguments)


def one(value: int) -> BuildRequest:
    return request(f'extern "C" int f() {{ return {value}; }}', **LEAN)


# The cache


class Compiler:
    """Stands in for the builder: a library whose bytes are the first source."""

    def __init__(self, status: int | None = 0, dependencies: dict[str, str] | None = None) -> None:
        self.status, self.dependencies, self.calls = status, dependencies or {}, 0

    def __call__(self, argv: object, cwd: Path, env: object, timeout_s: float) -> tuple:
        self.calls += 1
        asked = BuildRequest.model_validate_json((cwd / "request.json").read_text())
        (cwd / "work").mkdir()
        (cwd / "work" / f"{asked.name}.so").write_text(asked.cpp_sources[0])
        report = {"library": "", "error": None, "dependencies": self.dependencies}
        (cwd / "report.json").write_text(json.dumps(report))
        return self.status, f"{cwd}/work/main.cpp:1:5: warning: odd [-Wodd]\n"


def test_a_build_is_found_again(tmp_path: Path) -> None:
    compiler = Compiler()
    first = build(one(1), cache_dir=tmp_path, run=compiler)
    again = build(one(1), cache_dir=tmp_path, run=compiler)
    other = build(one(2), cache_dir=tmp_path, run=compiler)
    assert compiler.calls == 2
    assert first.library == again.library != other.library
    assert first.module_name == again.module_name != other.module_name
    assert first.library.read_text() == one(1).cpp_sources[0]
    assert [first.build.from_cache, again.build.from_cache] == [False, True]
    assert first.build.seconds is not None
    assert again.build.seconds is None
    assert again.build.diagnostics == first.build.diagnostics
    assert [(d.file, d.line, d.message) for d in first.build.diagnostics] == [
        ("cpp_sources[0]", 1, "odd [-Wodd]")
    ]
    assert BuildOutcome.model_validate_json(again.model_dump_json()) == again
    assert list((tmp_path / "tmp").iterdir()) == []


def test_every_part_of_a_request_and_of_the_tools_makes_another_key() -> None:
    tools = Environment(
        "2.13", "13.0", "3.11", "x86_64", "/usr/bin/c++", "12", "/cuda", "13", "9.0a"
    )
    base = request("a", cuda_sources="b", functions=["f"], extra_cflags=["-O1", "-g"])
    changed = [
        base.model_copy(update=update)
        for update in (
            {"name": "other"},
            {"cpp_sources": ("a", "")},
            {"cpp_sources": ("", "a")},
            {"cuda_sources": ("c",)},
            {"functions": {"f": "doc"}},
            {"functions": None},
            {"extra_cflags": ("-g", "-O1")},
            {"extra_cuda_cflags": ("-O1",)},
            {"extra_ldflags": ("-lm",)},
            {"extra_include_paths": ("/x",)},
            {"with_cuda": True},
            {"no_implicit_headers": True},
            {"is_python_module": False},
            {"with_pytorch_error_handling": False},
        )
    ]
    keys = [cache_key(asked, tools) for asked in (base, *changed)]
    for field in dataclasses.fields(Environment):
        value = (("CPATH", "/x"),) if field.name == "variables" else "other"
        keys.append(cache_key(base, dataclasses.replace(tools, **{field.name: value})))
    assert len(set(keys)) == len(keys)
    assert keys[0] == cache_key(base.model_copy(), dataclasses.replace(tools))


@pytest.mark.parametrize(
    "damage", ["library", "size", "missing", "result", "empty", "header", "key"]
)
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage: str) -> None:
    header = tmp_path / "own.h"
    header.write_text("1")
    known = "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"  # sha256 of "1"
    compiler = Compiler(dependencies={str(header): known})
    library = build(one(1), cache_dir=tmp_path, run=compiler).library
    assert build(one(1), cache_dir=tmp_path, run=compiler).build.from_cache
    text = library.read_text()
    result = library.parent / "result.json"
    if damage == "library":
        library.write_text(text[:-1] + "?")
    elif damage == "size":
        library.write_text(text[:-1])
    elif damage == "missing":
        library.unlink()
    elif damage == "result":
        result.write_text(result.read_text()[:-9])
    elif damage == "empty":
        shutil.rmtree(library.parent)
        library.parent.mkdir()
    elif damage == "key":
        result.write_text(result.read_text().replace('"key": "', '"key": "0'))
    else:
        header.write_text("2")
    again = build(one(1), cache_dir=tmp_path, run=compiler)
    assert not again.build.from_cache
    assert again.library == library
    assert library.read_text() == text
    assert list((tmp_path / "tmp").iterdir()) == []


def test_who_was_first_is_kept(tmp_path: Path) -> None:
    inner: list[BuildOutcome] = []

    def slow(argv: object, cwd: Path, env: object, timeout_s: float) -> tuple:
        inner.append(build(one(1), cache_dir=tmp_path, run=Compiler()))
        inode.append(inner[0].library.stat().st_ino)
        return Compiler()(argv, cwd, env, timeout_s)

    inode: list[int] = []
    outer = build(one(1), cache_dir=tmp_path, run=slow)
    assert outer.library == inner[0].library
    assert outer.library.stat().st_ino == inode[0]
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("status", [1, None, -9])
def test_failures_are_not_kept(tmp_path: Path, status: int | None) -> None:
    failed = build(one(1), cache_dir=tmp_path, timeout_s=7, run=Compiler(status))
    assert failed.library is None
    assert not failed.build.succeeded
    assert failed.timed_out == (status is None)
    words = {1: "ended with status 1", None: "not done after 7 s", -9: "killed by signal 9"}
    assert words[status] in failed.build.diagnostics[0].message
    assert failed.environment_error is None
    assert build(one(1), cache_dir=tmp_path, run=Compiler()).build.succeeded


def test_folders_of_dead_processes_go_after_a_day(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    names = {f"{gone.pid}-old": 1, f"{gone.pid}-new": 0, f"{os.getpid()}-old": 1, "stranger": 1}
    for name, old in names.items():
        folder = tmp_path / "tmp" / name
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
        when = time.time() - old * 90_000
        os.utime(folder, (when, when))
    remove_leftovers(tmp_path)
    left = {folder.name for folder in (tmp_path / "tmp").iterdir()}
    assert left == set(names) - {f"{gone.pid}-old"}


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELBENCH_DIST_CACHE", "/a")
    assert default_cache_dir() == Path("/a")
    monkeypatch.delenv("KERNELBENCH_DIST_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert default_cache_dir() == Path("/b/kernelbench_dist")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == Path.home() / ".cache/kernelbench_dist"


# The launcher


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_output_is_drained_and_its_end_kept(tmp_path: Path) -> None:
    pieces: list[str] = []
    text = "import sys; print('a' * 3_000_000); print('last', file=sys.stderr); sys.exit(3)"
    status, output = launch(python(text), tmp_path, os.environ, 60, pieces.append)
    assert status == 3
    assert len(output) == 1 << 20
    assert output.endswith("a\nlast\n")
    assert sum(map(len, pieces)) == 3_000_001 + 5


def test_a_listener_that_fails_does_not_stop_the_program(tmp_path: Path) -> None:
    def listener(text: str) -> None:
        raise RuntimeError(text)

    status, output = launch(python("print('a' * 300_000)"), tmp_path, os.environ, 60, listener)
    assert (status, len(output)) == (0, 300_001)


def is_running(pid: int | str) -> bool:
    """False too for what is dead and waits for its parent."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


@pytest.mark.parametrize("ends", [False, True])
def test_nothing_is_left_running(tmp_path: Path, ends: bool) -> None:
    # As ninja does: a child in a process group of its own, which holds the pipe open.
    text = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], process_group=0)
print(child.pid, flush=True)
{"" if ends else "time.sleep(300)"}
"""
    if sys.version_info < (3, 11):
        text = text.replace("process_group=0", "preexec_fn=os.setpgrp")
    start = time.monotonic()
    status, output = launch(python(text), tmp_path, os.environ, 60 if ends else 1.5)
    assert time.monotonic() - start < 20
    assert status == (0 if ends else None)
    assert not is_running(int(output))


# What the tools are, and why nothing can be built


TOOLS = Environment("2.14.1+cu130", "13.0", "3.11", "x86_64", "/usr/bin/c++", "12")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cxx": None}, ["there is no C++ compiler", "CXX"]),
        ({"torch_cuda": None, "torch_version": "2.13.0+cpu"}, ["2.13.0+cpu", "CUDA_HOME"]),
        ({}, ["there is no CUDA toolkit", "CUDA_HOME"]),
        ({"cuda_home": "/c", "nvcc_version": "release 12.8, V12"}, ["12.8", "13.0", "CUDA_HOME"]),
    ],
)
def test_what_is_missing_is_named(changes: dict[str, str], words: list[str]) -> None:
    sentence = problem(dataclasses.replace(TOOLS, **changes), with_cuda=True)
    assert sentence is not None
    assert "\n" not in sentence
    assert all(word in sentence for word in words)
    assert problem(TOOLS, with_cuda=False) is None


@needs_any_nvcc
@pytest.mark.parametrize("listed", ["10.1", "99.0", "sm_90", " ", "7.0", "9.0a;", "x"])
def test_an_unknown_architecture_is_named(listed: str) -> None:
    home = os.path.realpath("/usr/local/cuda")
    if not Path(home, "bin/nvcc").is_file():
        pytest.skip("needs the toolkit in /usr/local/cuda")
    tools = dataclasses.replace(TOOLS, cuda_home=home, nvcc_version="", architectures=listed)
    sentence = problem(tools, with_cuda=True)
    assert sentence is not None
    assert repr(listed) in sentence
    assert "9.0+PTX" in sentence
    good = dataclasses.replace(tools, architectures="8.0;9.0a 9.0+PTX;Hopper")
    assert problem(good, with_cuda=True) is None
    assert problem(tools, with_cuda=True, flags=("-arch=sm_90a",)) is None


@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a torch without CUDA")
@needs_compiler
def test_cuda_sources_with_a_torch_for_cpus(tmp_path: Path) -> None:
    outcome = build(request("", cuda_sources="int x;"), cache_dir=tmp_path)
    assert outcome.environment_error is not None
    assert "is not a CUDA build" in outcome.environment_error
    assert not outcome.build.succeeded
    assert outcome.build.diagnostics[0].message == outcome.environment_error


def test_a_missing_compiler_is_the_machines_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    outcome = build(one(1), cache_dir=tmp_path)
    assert outcome.environment_error is not None
    assert "'/nowhere/c++'" in outcome.environment_error


# Real builds


@needs_compiler
def test_a_stale_lock_does_not_matter(tmp_path: Path) -> None:
    """And what a submission includes from its own folder is looked at each time."""
    header = tmp_path / "include" / "own.h"
    header.parent.mkdir()
    header.write_text("#define VALUE 7\n")
    folders = [tmp_path, tmp_path / "tmp", tmp_path / "builds"]
    asked = request(
        '#include "own.h"\nextern "C" int f() { return VALUE; }',
        extra_include_paths=[str(header.parent)],
        **LEAN,
    )
    key = cache_key(asked, current_environment(False))
    folders.append(tmp_path / "builds" / key)
    for folder in folders:
        folder.mkdir(exist_ok=True)
        (folder / "lock").write_text("")
    pieces: list[str] = []
    outcome = build(asked, cache_dir=tmp_path, timeout_s=120, on_output=pieces.append)
    assert outcome.library is not None, outcome.build.log
    assert ctypes.CDLL(str(outcome.library)).f() == 7
    assert "[2/2]" in "".join(pieces)
    assert build(asked, cache_dir=tmp_path).build.from_cache
    header.write_text("#define VALUE 8\n")
    assert not build(asked, cache_dir=tmp_path, run=Compiler(1)).build.from_cache


@pytest.mark.slow
@needs_compiler
def test_a_compiler_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(f"""#!/bin/sh
case "$*" in
    *main.cpp*) echo $$ >> {tmp_path}/pids; sleep 300 & echo $! >> {tmp_path}/pids; wait;;
    *) exec {shutil.which("c++")} "$@";;
esac
""")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    outcome = build(one(1), cache_dir=tmp_path / "cache", timeout_s=25)
    assert outcome.timed_out
    assert outcome.library is None
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 2
    assert not any(map(is_running, pids))
    assert list((tmp_path / "cache/tmp").iterdir()) == []


@pytest.mark.slow
@needs_compiler
def test_messages_of_a_real_build(tmp_path: Path) -> None:
    broken = request(["int a;\n", "\nint f() { return a + b; }\nint g(int);\n"], **LEAN)
    outcome = build(broken, cache_dir=tmp_path)
    assert [(d.file, d.line, d.column, d.message) for d in outcome.build.diagnostics] == [
        ("cpp_sources[1]", 2, 22, "'b' was not declared in this scope")
    ]
    assert str(tmp_path) not in outcome.build.log
    incomplete = request('int g(int);\nextern "C" int f() { return g(1); }', **LEAN)
    outcome = build(incomplete, cache_dir=tmp_path)
    assert [(d.severity, d.message) for d in outcome.build.diagnostics] == [
        ("warning", "undefined reference to `g(int)'")
    ]


@pytest.mark.slow
@needs_compiler
def test_the_builder_does_not_run_the_library(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    text = f'#include <cstdio>\nstruct S {{ S() {{ fclose(fopen("{mark}", "w")); }} }} s;'
    outcome = build(request(text, **LEAN), cache_dir=tmp_path)
    assert not mark.exists()
    load_built(outcome.module_name, outcome.library, False)
    assert mark.exists()


@pytest.mark.slow
@needs_compiler
def test_files_are_compiled_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text('#include "own.h"\nstatic int v = 1; int g() { return v; }')
    (tmp_path / "b.cc").write_text(
        '#include "own.h"\nstatic int v = 2; extern "C" int f() { return g() + v; }'
    )
    (tmp_path / "own.h").write_text("int g();\n")
    asked = BuildRequest.from_load(
        "x", [tmp_path / "a.cpp", tmp_path / "b.cc"], is_python_module=False
    )
    outcome = build(asked, cache_dir=tmp_path / "cache")
    assert outcome.library is not None, outcome.build.log
    assert ctypes.CDLL(str(outcome.library)).f() == 3


PYBIND = "#include <pybind11/pybind11.h>\n"
SMALL = {"no_implicit_headers": True, "with_pytorch_error_handling": False, "functions": ["f"]}


@pytest.mark.slow
@needs_compiler
def test_the_same_name_with_other_contents(tmp_path: Path) -> None:
    modules = []
    for value in (1, 2):
        text = PYBIND + f"int f() {{ return {value}; }}"
        outcome = build(request(text, **SMALL), cache_dir=tmp_path)
        assert outcome.library is not None, outcome.build.log
        modules.append(load_built(outcome.module_name, outcome.library, True))
    first, second = modules
    assert [first.f(), second.f(), first.f()] == [1, 2, 1]


@pytest.mark.slow
@needs_compiler
def test_an_exported_function_that_is_not_declared(tmp_path: Path) -> None:
    outcome = build(request(PYBIND, **SMALL), cache_dir=tmp_path)
    (error,) = outcome.build.diagnostics
    assert (error.file, error.message) == ("functions", "'f' was not declared in this scope")
    assert "Declare `f` in cpp_sources" in error.hint


@pytest.mark.slow
@needs_compiler
def test_torchs_headers_and_errors(tmp_path: Path) -> None:
    """The number in the error's message crashes where two libstdc++ are in the process."""
    text = """at::Tensor f(const at::Tensor& x) {
  TORCH_CHECK(x.dim() == 1, "dim is ", x.dim(), " and ", 0.5);
  return x + 1;
}"""
    outcome = build(request(text, functions=["f"], extra_cflags=["-O1"]), cache_dir=tmp_path)
    assert outcome.library is not None, outcome.build.log
    assert not [d for d in outcome.build.diagnostics if "undefined" in d.message]
    module = load_built(outcome.module_name, outcome.library, True)
    assert module.f(torch.zeros(2)).tolist() == [1, 1]
    with pytest.raises(RuntimeError, match=r"dim is 2 and 0\.5"):
        module.f(torch.zeros(2, 2))


KERNEL = """template <class T> __global__ void twice(T* x) { x[threadIdx.x] *= 2; }
extern "C" void f(float* x) { twice<<<1, 32>>>(x); }
"""


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("flags", [[], ["-Xcompiler -march=native"], ["-arch=sm_80"]])
def test_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0a")
    asked = request("", cuda_sources=KERNEL, extra_cuda_cflags=flags, **LEAN)
    outcome = build(asked, cache_dir=tmp_path)
    assert outcome.library is not None, outcome.build.log
    (kernel,) = outcome.build.kernels
    assert kernel.architecture == ("sm_80" if "-arch=sm_80" in flags else "sm_90a")
    assert kernel.registers > 0
    assert "twice" in kernel.name
    assert build(asked, cache_dir=tmp_path).build.kernels == outcome.build.kernels


@pytest.mark.slow
@needs_nvcc
def test_a_broken_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    texts = ["#include <cuda_fp16.h>\n", "\n__global__ void k(__half* x) { x[0] = x[1] + x[2]; }"]
    outcome = build(request("", cuda_sources=texts, **LEAN), cache_dir=tmp_path)
    error = outcome.build.diagnostics[0]
    assert (error.file, error.line) == ("cuda_sources[1]", 2)
    assert "__half + __half" in error.message
    assert "__hadd" in (error.hint or "")
