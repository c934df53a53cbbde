"""What a submission may ask to be built: flags, arguments, sizes."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import cpp_extension

from kernelbench_dist.harness.build import BuildRequest, FlagError, check_flags


def request(cpp: str | list[str] = "", **arguments: object) -> BuildRequest:
    return BuildRequest.from_load_inline("ext", cpp, **arguments)


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("extra_cflags", ["-O3", "-std=c++20", "-DNDEBUG", "-DN=4", "-march=native", "-fopenmp"]),
        ("extra_cflags", ["-ffast-math -funroll-loops", "-Wall", "-Wno-unused-variable", "-g", ""]),
        ("extra_cflags", ["-I/opt/include", "-I", "/opt/x", "-D", "A=1", "-msse4.2", "-pthread"]),
        ("extra_cuda_cflags", ["-O3", "--use_fast_math", "-use_fast_math", "-lineinfo", "-G"]),
        ("extra_cuda_cflags", ["-gencode=arch=compute_90a,code=sm_90a", "-arch=sm_90a"]),
        ("extra_cuda_cflags", ["-gencode arch=compute_90a,code=sm_90a", "-arch", "sm_90"]),
        ("extra_cuda_cflags", ["-gencode", "arch=compute_80,code=compute_80", "-code=sm_80,sm_90"]),
        ("extra_cuda_cflags", ["-Xptxas=-v", "-Xptxas -O3,-dlcm=ca", "--ptxas-options=-v"]),
        ("extra_cuda_cflags", ["-Xptxas", "--warn-on-spills", "-maxrregcount=64", "-t", "2"]),
        ("extra_cuda_cflags", ["-Xcompiler", "-fopenmp", "-Xcompiler=-O3,-march=native"]),
        ("extra_cuda_cflags", ["--expt-relaxed-constexpr", "--expt-extended-lambda", "-rdc=true"]),
        ("extra_cuda_cflags", ["--fmad=false", "-prec-div=false", "-U__CUDA_NO_HALF_OPERATORS__"]),
        ("extra_cuda_cflags", ["-diag-suppress=177", "-Xcudafe --diag_suppress=177", "-std=c++20"]),
        ("extra_ldflags", ["-lcuda", "-lcublasLt", "-L/opt/lib", "-fopenmp", "-lstdc++"]),
    ],
)
def test_flags_in_use_are_accepted(kind: str, flags: list[str]) -> None:
    assert list(check_flags(kind, flags)) == " ".join(flags).split()


RUNS_A_PROGRAM = [
    *("-wrapper=/x", "-wrapper", "-fplugin=/x.so", "-fplugin-arg-x-y", "-fpass-plugin=/x.so"),
    *("-B/x", "-B", "-specs=/x", "-specs", "--specs=/x", "@/x", "-x", "-xc", "-o", "-o/x"),
    *("-fmodule-mapper=/x", "-fmodules", "-fuse-ld=/x", "-mllvm", "-Xclang", "-Wl,-plugin,/x"),
    *(
        "-Wl,--dynamic-linker=/x",
        "-Wa,-I/x",
        "-Wp,-MD,/x",
        "-include",
        "-MF",
        "-dumpdir",
        "-save-temps",
    ),
    *("-ccbin", "-ccbin=/x", "--compiler-bindir=/x", "--run", "-run", "--options-file=/x", "-optf"),
    *(
        "-Xlinker",
        "-Xlinker=-plugin",
        "-Xnvlink=-x",
        "--keep",
        "-l:x.so",
        "-lx/../y",
        "-L",
        "-shared",
    ),
    *("--dryrun", "-nvvm", "-target-dir=/x", "--output-file=/x", "-E", "-T/x", "/x.o", "x.a", "-"),
    *("-fprofile-use=/x", "-fdump-tree-all", "-fauto-profile", "--sysroot=/x", "-static-libstdc++"),
    *("-ldir=/x", "-idp=/x", "--dependency-output=/x", "--cudart-path=/x", "-static"),
]


@pytest.mark.parametrize("flag", RUNS_A_PROGRAM)
@pytest.mark.parametrize("kind", ["extra_cflags", "extra_cuda_cflags", "extra_ldflags"])
def test_flags_that_could_run_or_write_something_are_refused(kind: str, flag: str) -> None:
    with pytest.raises(FlagError) as error:
        check_flags(kind, [flag])
    assert repr(flag)[1:-1] in str(error.value)
    assert "accepted are" in str(error.value)
    if not flag.startswith(("/", "x", "-l", "-L")):
        for hidden in ([f"-Xcompiler={flag}"], ["-Xcompiler", flag], [f"-Xptxas=-v,{flag}"]):
            with pytest.raises(FlagError):
                check_flags("extra_cuda_cflags", hidden)


@given(
    st.sampled_from(["-DX=", "-O3", "-I/x", "-Xcompiler=", "-lm", "-fopenmp", "-Xptxas=-v", "-D"]),
    st.sampled_from(list(";|&$`\"'<>(){}[]*?!#~\\@%^\0\x7f\u00e9")),
    st.text("ab/;$ ", max_size=4),
)
def test_no_flag_means_anything_to_a_shell(stem: str, character: str, rest: str) -> None:
    for kind in ("extra_cflags", "extra_cuda_cflags", "extra_ldflags"):
        for flags in ([stem + character + rest], ["-I", character + rest], [stem, character]):
            with pytest.raises(FlagError):
                check_flags(kind, flags)


@given(st.lists(st.sampled_from([*RUNS_A_PROGRAM, "-I", "-D", "-Xcompiler", "-Xptxas", "-l"])))
def test_a_flag_is_not_hidden_as_the_value_of_another(flags: list[str]) -> None:
    try:
        words = check_flags("extra_cuda_cflags", flags)
    except FlagError:
        return
    # What is left are values of -I, where a path may begin with anything: nvcc takes it so too.
    assert all(previous in ("-I", "-D") for previous in words[::2])


def test_a_flag_without_its_value_and_a_text_for_a_list() -> None:
    with pytest.raises(FlagError, match=r"'-gencode' has no value"):
        check_flags("extra_cuda_cflags", ["-gencode"])
    with pytest.raises(TypeError, match="a list of flags is accepted"):
        check_flags("extra_cflags", "-O3")
    with pytest.raises(FlagError, match="201 flags"):
        check_flags("extra_cflags", ["-O3"] * 201)


def test_the_arguments_are_those_of_torch() -> None:
    for ours, theirs in (
        (BuildRequest.from_load_inline, cpp_extension.load_inline),
        (BuildRequest.from_load, cpp_extension.load),
    ):
        assert list(inspect.signature(ours).parameters) == list(
            inspect.signature(theirs).parameters
        )


def test_a_request_travels_as_json() -> None:
    asked = request(
        ["int f();", "int g();"],
        cuda_sources="// x",
        functions=["f", "g"],
        verbose=True,
        extra_cuda_cflags=["-O3 -lineinfo"],
        extra_include_paths=["here"],
        build_directory="/x",
    )
    assert BuildRequest.model_validate_json(asked.model_dump_json()) == asked
    assert asked.functions == {"f": "f", "g": "g"}
    assert asked.extra_cuda_cflags == ("-O3", "-lineinfo")
    assert asked.extra_include_paths == (f"{Path.cwd()}/here",)
    assert asked.needs_cuda
    assert not request("").needs_cuda
    assert request("", functions="f").functions == {"f": "f"}
    assert request("", functions={"f": "adds"}).functions == {"f": "adds"}


def test_json_is_checked_again() -> None:
    good = request("").model_dump()
    for bad in (
        {"extra_cflags": ("-fplugin=/x.so",)},
        {"extra_include_paths": ("/x;touch /y",)},
        {"extra_include_paths": ("relative",)},
        {"name": "../x"},
        {"name": "x y"},
        {"cpp_sources": ("x" * 8_000_001,)},
        {"cpp_names": ("a.cpp", "b.cpp")},
        {"unknown": 1},
    ):
        with pytest.raises(ValueError):
            BuildRequest.model_validate(good | bad)


def test_what_is_not_built_here_is_refused() -> None:
    with pytest.raises(TypeError, match="hip_sources"):
        request("", hip_sources="x")
    with pytest.raises(ValueError, match="SYCL"):
        request("", sycl_sources="x")
    with pytest.raises(ValueError, match="SYCL"):
        request("", with_sycl=True)
    with pytest.raises(TypeError, match="cpp_sources holds 3"):
        request([3])
    with pytest.raises(ValueError, match="is_standalone"):
        BuildRequest.from_load("x", [], is_standalone=True)
    with pytest.raises(ValueError, match=r"'x\.py' ends in none of"):
        BuildRequest.from_load("x", "x.py")


def test_files_are_read_and_keep_their_names(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text('#include "own.h"\nint a;')
    (tmp_path / "a.cu").write_text("int b;")
    asked = BuildRequest.from_load("x", [str(tmp_path / "a.cu"), tmp_path / "a.cpp"])
    assert (asked.cpp_sources, asked.cuda_sources) == (('#include "own.h"\nint a;',), ("int b;",))
    assert (asked.cpp_names, asked.cuda_names) == (("a.cpp",), ("a.cu",))
    assert asked.extra_include_paths == (str(tmp_path),)
