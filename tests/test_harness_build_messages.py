"""Messages of builds, in the words of g++ 12, nvcc 13.0 and GNU ld."""

from __future__ import annotations

import shutil

from hypothesis import given
from hypothesis import strategies as st

from kernelbench_dist.harness.build import BuildRequest, _hints, hint_for
from kernelbench_dist.harness.build._messages import read_diagnostics, read_kernels


def request(cpp: str | list[str] = "", **arguments: object) -> BuildRequest:
    return BuildRequest.from_load_inline("ext", cpp, **arguments)


def test_lines_are_those_of_the_source() -> None:
    asked = request(["int a;\nint b;\n", "int c;"], cuda_sources=["x", "y\nz"], functions=["f"])
    # main.cpp: 1 header, 2 to 4 the first source, 5 the second, then the bindings.
    output = """
[1/3] c++ -c /t/main.cpp -o main.o
FAILED: main.o
/t/main.cpp: In function 'int h()':
/t/main.cpp:3:17: error: first
    3 | int h(){ return f(2) + g(1); }
/t/main.cpp:5:1: error: second
/t/main.cpp:6:9: error: third
In file included from /t/main.cpp:1:
/opt/torch/include/ATen/core/Tensor.h:7:3: error: fourth
/opt/torch/include/ATen/core/Tensor.h:8:3: note: candidate: 'x'
/opt/torch/include/ATen/core/Tensor.h:9:3: warning: not mine
/t/cuda.cu(4): error: fifth
/t/cuda.cu(6): warning #177-D: sixth
/t/cuda.cu(6): warning #177-D: sixth
"""
    found = [
        (d.severity, d.file, d.line, d.column, d.message) for d in read_diagnostics(output, asked)
    ]
    assert found == [
        ("error", "cpp_sources[0]", 2, 17, "first"),
        ("error", "cpp_sources[1]", 1, 1, "second"),
        ("error", "functions", None, None, "third"),
        ("error", "ATen/core/Tensor.h", 7, None, "fourth"),
        ("error", "cuda_sources[0]", 1, None, "fifth"),
        ("warning", "cuda_sources[1]", 2, None, "sixth"),
    ]


@given(st.lists(st.text("a\n", max_size=6), min_size=1, max_size=4), st.booleans(), st.data())
def test_lines_are_found_wherever_they_are(
    texts: list[str], lean: bool, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(texts) - 1))
    line = data.draw(st.integers(1, len(texts[index].split("\n"))))
    for kind, file, headers in (("cpp_sources", "main.cpp", 1), ("cuda_sources", "cuda.cu", 3)):
        asked = request(
            **({"cpp": texts} if kind == "cpp_sources" else {"cuda_sources": texts}),
            no_implicit_headers=lean,
        )
        # By another way than the code's: write the file as torch does and look for the mark.
        marked = [text.split("\n") for text in texts]
        marked[index][line - 1] = "here"
        whole = "\n".join(["h"] * (0 if lean else headers) + ["\n".join(text) for text in marked])
        number = whole.split("\n").index("here") + 1
        (found,) = read_diagnostics(f"/t/{file}:{number}:1: error: x", asked)
        assert (found.file, found.line) == (f"{kind}[{index}]", line)


def test_files_have_the_authors_names() -> None:
    asked = BuildRequest(
        name="x",
        cpp_sources=("", ""),
        cuda_sources=("",),
        cpp_names=("bind.cpp", "more.cc"),
        cuda_names=("k.cu",),
    )
    output = "cpp_1.cpp:3:2: error: a\ncuda_0.cu(9): error: b\ncpp_0.cpp:1:1: fatal error: c\n"
    assert [(d.file, d.line) for d in read_diagnostics(output, asked)] == [
        ("more.cc", 3),
        ("k.cu", 9),
        ("bind.cpp", 1),
    ]


def test_a_function_that_is_exported_but_not_declared() -> None:
    output = "main.cpp:4:40: error: 'gather' was not declared in this scope\n"
    (found,) = read_diagnostics(output, request("", functions=["gather"]))
    assert found.file == "functions"
    assert found.hint is not None
    assert found.hint.startswith("Declare `gather` in cpp_sources")
    (elsewhere,) = read_diagnostics(output, request("a\nb\nc\nd", functions=["gather"]))
    assert (elsewhere.file, elsewhere.hint) == ("cpp_sources[0]", None)


def test_messages_of_the_linker_and_of_the_tools() -> None:
    output = """
/usr/bin/ld: main.o: in function `h()':
main.cpp:(.text+0xa): warning: undefined reference to `g(int)'
/usr/bin/ld: /t/main.cpp:2: warning: undefined reference to `q(int)'
/usr/bin/ld: /t/main.cpp:2: warning: undefined reference to `Py_IsInitialized'
/usr/bin/ld: cannot find -lcuda: No such file or directory
cuda.cu:(.text+0x0): multiple definition of `h()'; main.o:main.cpp:(.text+0x0): first defined here
c++: error: unrecognized command-line option '-fnothing'
nvcc fatal   : Unsupported gpu architecture 'compute_70'
ptxas /t/x.ptx, line 28; error   : Instruction 'wgmma.fence' not supported on .target 'sm_90'
ptxas fatal   : Ptx assembly aborted due to errors
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored.
collect2: error: ld returned 1 exit status
"""
    found = [
        (d.severity, d.file, d.line, d.message.split(" ")[0])
        for d in read_diagnostics(output, request("\nx", cuda_sources="", no_implicit_headers=True))
    ]
    assert found == [
        ("error", "ld", None, "cannot"),
        ("error", "cuda_sources", None, "multiple"),
        ("error", "c++", None, "unrecognized"),
        ("error", "nvcc", None, "Unsupported"),
        ("error", "ptxas", None, "Instruction"),
        ("warning", "cpp_sources", None, "undefined"),
        ("warning", "cpp_sources[0]", 2, "undefined"),
        ("warning", "ptxas", None, "(C7508)"),
    ]


def test_what_nvcc_adds_below_a_message() -> None:
    output = """/t/cuda.cu(2): error: no operator "+" matches these operands
            operand types are: __half + __half
  __attribute__((global)) void k(__half* x){ x[0] = x[1] + x[2]; }
                                                         ^
/t/cuda.cu(4): warning #177-D: variable "u" was declared but never referenced
            void other(float* x){ int u; }
                                      ^
"""
    asked = request("", cuda_sources="\n\n\n", no_implicit_headers=True)
    assert [d.message for d in read_diagnostics(output, asked)] == [
        'no operator "+" matches these operands; operand types are: __half + __half',
        'variable "u" was declared but never referenced',
    ]


def test_what_ptxas_reports() -> None:
    output = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z3addIfEvPT_i' for 'sm_90a'
ptxas info    : Function properties for _Z3addIfEvPT_i
    32 bytes stack frame, 28 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 32 bytes cumulative stack size, 512 bytes smem
ptxas info    : Compile time = 17.394 ms
ptxas info    : Compiling entry function '_Z5otherPf' for 'sm_80'
ptxas info    : Function properties for _Z5otherPf
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 34 registers, 360 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Function properties for _Z6helperf
    16 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
"""
    add, other = read_kernels(output)
    if shutil.which("c++filt"):
        assert (add.name, other.name) == ("void add<float>(float*, int)", "other(float*)")
    assert list(add.model_dump().values())[1:] == ["sm_90a", 40, 512, 0, 32, 28, 24]
    assert list(other.model_dump().values())[1:] == ["sm_80", 34, 0, 368, 8, 0, 0]


REAL_MESSAGES = [
    "cannot find -lcuda: No such file or directory",
    "undefined reference to `g(int)'",
    "/x.so: undefined symbol: _Z1gi",
    "Unresolved extern function '_Z1qf'",
    "multiple definition of `h()'; main.o:main.cpp:(.text+0x0): first defined here",
    "redefinition of 'PyObject* PyInit_foo()'",
    "fatal error: format: No such file or directory",
    "fatal error: cutlass/nothere.h: No such file or directory",
    "invalid conversion from 'void*' to 'float*' [-fpermissive]",
    "no matching function for call to 'T::data_ptr()'",
    "'T* at::Tensor::data() const [with T = float]' is deprecated: Tensor.data<T>() is deprecated.",
    "'empty_like' is not a member of 'torch'",
    "'torch' has not been declared",
    "no matching function for call to 'pybind11::module_::def(const char [2],"
    " <unresolved overloaded function type>, const char [2])'",
    "expected constructor, destructor, or type conversion before '(' token",
    'no operator "+" matches these operands; operand types are: __half + __half',
    'no operator "=" matches these operands; operand types are: __half = float',
    'no suitable conversion function from "__half" to "float" exists',
    'identifier "__shfl_down" is undefined',
    'no instance of overloaded function "__shfl_down_sync" matches the argument list',
    'calling a __host__ function("h(float)") from a __global__ function("k") is not allowed',
    'calling a __device__ function("_ZN3foo9atomicAddE1?1?") from a __host__ function("f") is not'
    " allowed",
    "kernel launch from __device__ or __global__ functions requires separate compilation mode",
    "a __global__ function call must be configured",
    "Entry function '_Z1kPf' uses too much shared data (0x13880 bytes, 0xc000 max)",
    "Instruction 'setmaxnreg.dec' not supported on .target 'sm_90'",
    "Unsupported gpu architecture 'compute_70'",
    'more than one instance of overloaded function "max" matches the argument list:',
    'name followed by "::" must be a class or namespace name',
]


def test_each_hint_is_for_a_real_message() -> None:
    hints = [hint_for(message) for message in REAL_MESSAGES]
    assert None not in hints
    starts = {sentence.partition("{")[0] for _, sentence in _hints._HINTS}
    assert all(any(hint.startswith(start) for hint in hints) for start in starts if start != "`")
    assert all(hint.endswith(".") and "{" not in hint for hint in hints)
    assert hint_for("expected ';' before '}' token") is None
