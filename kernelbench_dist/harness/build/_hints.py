"""What usually causes a message of a compiler, and what to do: one sentence each.

Each pattern is the wording of a real compiler (g++ 12, nvcc 13.0, ptxas, ld), held by a test.
"""

from __future__ import annotations

import re

_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"cannot find -l(\S+)",
        "There is no such library here; of CUDA's, libcuda needs the driver: take its functions"
        " through cudaGetDriverEntryPoint.",
    ),
    (
        r"undefined (?:reference to `|symbol: )([^']+)'?",
        "`{0}` is declared but defined nowhere: define it in one of the sources, with the very same"
        " parameters, or name the library that has it in extra_ldflags.",
    ),
    (
        r"Unresolved extern function '",
        "A __device__ function is declared but defined in no source of the same file: define it"
        " there.",
    ),
    (
        r"multiple definition of `([^']+)'",
        "Define `{0}` once: in cuda_sources, say, with only a declaration in cpp_sources.",
    ),
    (
        r"redefinition of 'PyObject\* PyInit_",
        "With functions= the PYBIND11_MODULE block is written for you: leave out either.",
    ),
    (
        r"fatal error: format: No such file",
        "This compiler's library has no <format>: use std::to_string, snprintf or TORCH_CHECK.",
    ),
    (
        r"fatal error: (\S+): No such file",
        "The header {0} is not on the include path: name its folder in extra_include_paths, or do"
        " without it.",
    ),
    (
        r"invalid conversion from 'void\*' to '([\w ]+)\*'",
        "If this is data_ptr(), name its type: data_ptr<{0}>().",
    ),
    (
        r"no matching function for call to '\S*::data_ptr\(\)'",
        "Name the type: data_ptr<float>().",
    ),
    (
        r"Tensor\.data<T>\(\) is deprecated",
        "Write data_ptr<T>().",
    ),
    (
        r"'(\w+)' is not a member of '(?:at|torch)'",
        "Include the header that declares it (<ATen/ATen.h> or <torch/extension.h> have them all;"
        " <ATen/ops/{0}.h> is faster to compile).",
    ),
    (
        r"'torch' has not been declared"
        r"|expected constructor, destructor, or type conversion before '\('",
        "With no_implicit_headers=True and functions=, include <torch/csrc/utils/pybind.h> and"
        " <torch/csrc/Exceptions.h> yourself.",
    ),
    (
        r"<unresolved overloaded function type>",
        "The exported function is overloaded: give each version a name of its own.",
    ),
    (
        r"operand types are: (?:const )?__half|__half. (?:to|exists)|__half = |__half. to .float",
        "torch switches off the operators and conversions of __half: use __hadd, __hmul,"
        " __half2float and such, or compute in float.",
    ),
    (
        r"identifier \"__(shfl\w*|ballot|any|all)\" is undefined",
        "The version with a mask is the one there is: __{0}_sync(0xffffffff, ...).",
    ),
    (
        r"overloaded function \"__shfl\w*_sync\" matches the argument list",
        "The mask comes first: __shfl_down_sync(0xffffffff, value, delta).",
    ),
    (
        r"calling a __host__ function\(\"?([^\"(]+).*from a __(?:global|device)__ function",
        "Mark `{0}` with __device__, so that a kernel may call it.",
    ),
    (
        r"calling a __device__ function\(.*from a __host__ function",
        "Only kernels and __device__ functions may call it: start a kernel, or mark the caller.",
    ),
    (
        r"requires separate compilation mode",
        "A kernel cannot start kernels here: start them from the host, or loop inside the kernel.",
    ),
    (
        r"a __global__ function call must be configured",
        "Start a kernel with kernel<<<blocks, threads, shared_bytes, stream>>>(...).",
    ),
    (
        r"uses too much shared data \((0x\w+) bytes, (0x\w+) max\)",
        "Statically it has at most 48 KiB before 9.0: use extern __shared__ memory, allowed by"
        " cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), and"
        " smaller tiles if it is more than the device has.",
    ),
    (
        r"Instruction '([\w.]+)' not supported on .target '(sm_\d+)'",
        "`{0}` needs another target than {1}: wgmma and setmaxnreg need sm_90a, so list 9.0a in"
        " TORCH_CUDA_ARCH_LIST or give -gencode=arch=compute_90a,code=sm_90a.",
    ),
    (
        r"Unsupported gpu architecture '(\w+)'",
        "This nvcc does not compile for {0}: `nvcc --list-gpu-arch` lists what it knows.",
    ),
    (
        r"more than one instance of overloaded function \"(\w+)\" matches",
        "Give the arguments of `{0}` the same type, as in {0}(x, 1.0f).",
    ),
    (
        r"name followed by \"::\" must be a class or namespace name",
        "The header that declares this namespace is missing: for at::cuda::getCurrentCUDAStream"
        " it is <ATen/cuda/CUDAContext.h> or <c10/cuda/CUDAStream.h>.",
    ),
)


def hint_for(message: str) -> str | None:
    """A sentence on a compiler's, linker's or loader's message, None where none is known.

    >>> hint_for("fatal error: cutlass/cutlass.h: No such file or directory")[:26]
    'The header cutlass/cutlass'
    """
    for pattern, sentence in _HINTS:
        if match := re.search(pattern, message):
            return sentence.format(*(group or "" for group in match.groups()))
    return None
