"""Which compiler flags a submission may give: those that cannot make a compiler run a program.

A flag reaches a shell (ninja's) and then a compiler that can load plugins, call other programs and
write files, all with the judge's rights. So flags pass an allow-list of whole patterns; and their
characters are limited, so that none means anything to the shell or to ninja.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

FlagKind = Literal["extra_cflags", "extra_cuda_cflags", "extra_ldflags"]

MAX_FLAGS = 200
_CHARACTERS = re.compile(r"[A-Za-z0-9_=.,:/+-]+")
_PATH = r"[\w./+-][\w./+,:=-]*"
_WORD = r"[\w.+-]+"

_COMMON = (
    r"-O(?:[0-4sgz]|fast)?",
    r"--?std=(?:c|gnu)\+\+\w+",
    rf"-D\w+(?:={_PATH})?",
    r"-U\w+",
    rf"-I{_PATH}",
    r"-w",
)
_CXX = (
    *_COMMON,
    # A value may name a file or a program, so only some take one; and a few need none to do harm.
    r"-f(?!plugin|pass-plugin|module|profile|auto-profile|dump|save|compare-debug)[a-z][a-z0-9-]*",
    r"-f(?:abi-version|constexpr-\w+(?:-\w+)*|fp-contract|inline-limit|lto|max-errors|sanitize"
    r"|stack-protector|template-depth|tree-parallelize-loops|visibility|openmp|cf-protection"
    r"|diagnostics-color|vect-cost-model|excess-precision)=[\w,-]+",
    r"-fuse-ld=(?:bfd|gold|lld|mold)",
    rf"-m(?!llvm)[a-z][\w.-]*(?:={_WORD})?",
    r"-W[a-z][a-z0-9+-]+(?:=[\w+-]+)?",
    r"-g(?:[0-3]|gdb[0-3]?|dwarf(?:-[2-5])?|line-tables-only)?",
    r"-(?:pedantic(?:-errors)?|pthread|pipe|s)",
)
_LIBRARIES = (
    *("cuda", "cudart", "cudart_static", "cudadevrt", "cublas", "cublasLt", "cudnn", "cufft"),
    *("curand", "cusparse", "cusolver", "nvrtc", "nvJitLink", "nvToolsExt", "cupti", "nccl"),
    *("nvshmem_host", "c10", "c10_cuda", "torch", "torch_cpu", "torch_cuda", "torch_python"),
    *("c", "m", "stdc++", "gomp", "pthread", "rt", "dl", "atomic"),
)

_LINK = (
    *_CXX,
    rf"-L{_PATH}",
    rf"-l(?:{'|'.join(re.escape(name) for name in _LIBRARIES)})",
    r"-Wl,--(?:no-)?as-needed",
)
_TRUTH = r"=(?:true|false)"
_NVCC = (
    *_COMMON,
    r"-[gG]|--debug|--device-debug|-m64|-Werror",
    r"-W(?:no-)?[a-z][a-z-]*",
    r"--?(?:use_fast_math|lineinfo|generate-line-info|restrict|extended-lambda"
    r"|expt-extended-lambda|expt-relaxed-constexpr|extra-device-vectorization|dlto|resource-usage"
    r"|res-usage|allow-unsupported-compiler|disable-warnings|display-error-number"
    r"|split-compile=\d+|default-stream=[\w-]+)",
    rf"--?(?:fmad|ftz|prec-div|prec-sqrt|rdc|relocatable-device-code){_TRUTH}",
    r"--?(?:diag[-_](?:suppress|warn|error)|Wno-error)=[\w,-]+",
)
_PTXAS = (
    r"-(?:v|w|O[0-4])|--verbose|--disable-warnings|--opt-level=[0-4]",
    r"--?(?:warn-spills|warn-on-spills|warn-lmem-usage|warn-on-local-memory-usage|Werror)",
    r"--?(?:warn-on-double-precision-use|warn-double-usage|suppress-stack-size-warning)",
    r"--?(?:dlcm|dscm|def-load-cache|def-store-cache)=\w+",
    r"--?(?:maxrregcount|register-usage-level)=\d+",
    rf"--?(?:fmad|allow-expensive-optimizations){_TRUTH}",
)
_ARCHITECTURE = r"(?:compute|sm|lto)_\d+[af]?"
_CODES = rf"{_ARCHITECTURE}(?:,{_ARCHITECTURE})*"
# A flag's name, and the pattern of its value, which stands after "=" or in the next item.
_NVCC_VALUED = (
    (r"-gencode|--generate-code", rf"arch={_ARCHITECTURE},code={_CODES}"),
    (r"-arch|--gpu-architecture", rf"{_ARCHITECTURE}|native|all|all-major"),
    (r"-code|--gpu-code", _CODES),
    (r"--?maxrregcount|-t|--threads", r"\d+"),
    (r"--?diag[-_](?:suppress|warn|error)", r"[\w,-]+"),
    (
        r"-Xcudafe|--cudafe-options",
        r"--(?:diag_(?:suppress|warning|error)=\w+|display_error_number)",
    ),
    (r"-D|--define-macro", rf"\w+(?:={_PATH})?"),
    (r"-U|--undefine-macro", r"\w+"),
    (r"-std|--std", r"c\+\+\w+"),
    (r"-I|-isystem|--include-path|--system-include", _PATH),
)
_CXX_VALUED = ((r"-D", rf"\w+(?:={_PATH})?"), (r"-U", r"\w+"), (r"-I|-isystem", _PATH))
_LINK_VALUED = (*_CXX_VALUED, (r"-L", _PATH), (r"-l", "|".join(map(re.escape, _LIBRARIES))))

_PLAIN = {"extra_cflags": _CXX, "extra_cuda_cflags": _NVCC, "extra_ldflags": _LINK}
_VALUED = {
    "extra_cflags": _CXX_VALUED,
    "extra_cuda_cflags": _NVCC_VALUED,
    "extra_ldflags": _LINK_VALUED,
}
_ACCEPTED = {
    "extra_cflags": "-O*, -std=, -D, -U, -I, -f<word>, -m<word>, -W<word>, -g, -w, -pthread",
    "extra_cuda_cflags": (
        "-O*, -std=, -D, -U, -I, -gencode, -arch, -code, -maxrregcount, -lineinfo, -G, -rdc=,"
        " --use_fast_math, --fmad=, --ftz=, --prec-*=, --expt-*, --extended-lambda, --threads,"
        " -diag-suppress, -Xptxas with -v, -O*, -dlcm=, -warn-spills and such, and -Xcompiler with"
        " flags that extra_cflags accepts"
    ),
    "extra_ldflags": (
        "-L<folder>, -Wl,--no-as-needed, flags that extra_cflags accepts, and -l of these: "
        + " ".join(_LIBRARIES)
    ),
}


class FlagError(ValueError):
    """A flag that is not accepted; the message names it and says which are."""


def _refuse(kind: FlagKind, flag: str, why: str = "is not accepted") -> FlagError:
    return FlagError(f"{kind}: {flag!r} {why}; accepted are {_ACCEPTED[kind]}")


def _fits(flag: str, patterns: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, flag, re.ASCII) for pattern in patterns)


def _value_pattern(kind: FlagKind, name: str) -> str | None:
    for names, pattern in _VALUED[kind]:
        if re.fullmatch(names, name):
            return pattern
    return None


def check_flags(kind: FlagKind, flags: Iterable[str]) -> tuple[str, ...]:
    """The flags as single words, in their order. An item may hold several, apart by spaces.

    Raises:
        FlagError: one of them is not in the list of what is accepted, or has no value.
        TypeError: `flags` is a text, or holds something that is none.

    >>> check_flags("extra_cuda_cflags", ["-O3", "-gencode arch=compute_90a,code=sm_90a"])
    ('-O3', '-gencode', 'arch=compute_90a,code=sm_90a')
    """
    if isinstance(flags, str):
        raise TypeError(f"{kind} is {flags!r}, and a list of flags is accepted")
    words = []
    for item in flags:
        if not isinstance(item, str):
            raise TypeError(f"{kind} holds {item!r}, and only texts are accepted")
        words += item.split()
    if len(words) > MAX_FLAGS:
        raise FlagError(f"{kind} holds {len(words)} flags, and {MAX_FLAGS} are accepted")
    rest = iter(words)
    for word in rest:
        if not _CHARACTERS.fullmatch(word):
            raise _refuse(kind, word, "holds a character other than letters, digits and _=.,:/+-")
        name, _, value = word.partition("=")
        passes_on = kind == "extra_cuda_cflags" and re.fullmatch(
            r"-Xptxas|--ptxas-options|-Xcompiler|--compiler-options", name
        )
        pattern = _value_pattern(kind, name)
        if not passes_on and (pattern is None or _fits(word, _PLAIN[kind])):
            if not _fits(word, _PLAIN[kind]):
                raise _refuse(kind, word)
            continue
        if not value:
            value = next(rest, "")
            word = f"{word} {value}"
        if not value:
            raise _refuse(kind, word.strip(), "has no value")
        if passes_on:
            pieces = _PTXAS if "ptxas" in name else _CXX
            fits = all(_fits(piece, pieces) for piece in value.split(","))
        else:
            fits = re.fullmatch(pattern or "", value, re.ASCII) is not None
        if not fits or not _CHARACTERS.fullmatch(value):
            raise _refuse(kind, word)
    return tuple(words)
