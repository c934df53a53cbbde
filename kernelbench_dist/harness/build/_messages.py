"""What compilers, assembler and linker print, in terms of what the submission's author wrote."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath

from kernelbench_dist.harness._results import Diagnostic, KernelResources, Severity
from kernelbench_dist.harness.build._hints import hint_for
from kernelbench_dist.harness.build._request import BuildRequest

MAX_DIAGNOSTICS = 100
_MAX_MESSAGE = 2000
_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        # g++, clang, and nvcc's host compiler
        r"(?P<file>[^\s:(][^:(]*):(?P<line>\d+):(?:(?P<column>\d+):)?"
        r" (?P<severity>fatal error|error|warning|note): (?P<text>.*)",
        # nvcc's own front end
        r"(?P<file>[^\s(][^(]*)\((?P<line>\d+)\):"
        r" (?P<severity>(?:catastrophic )?error|warning|note)(?: #[\w-]+)?: (?P<text>.*)",
        r"(?P<file>ptxas) (?:\S+, line \d+; )?(?P<severity>fatal|error|warning)\s*: (?P<text>.*)",
        r"(?P<file>ptxas) info\s*: (?P<text>\(C\d+\) Potential Performance Loss: .*)",
        r"(?P<file>nvcc) (?P<severity>fatal|error|warning)\s*: (?P<text>.*)",
        r"(?:\S*/)?(?P<file>g\+\+|c\+\+|cc1plus|clang\S*)(?:-\d+)?: (?P<severity>fatal error|error)"
        r": (?P<text>.*)",
        # the linker: where the object has debug information it knows the line
        r"(?:\S*/ld(?:\.\w+)?: )?(?P<file>[^\s:(]+):(?:(?P<line>\d+)|\([^)]*\)):"
        r" (?P<severity>warning)?(?:: )?"
        r"(?P<text>(?:undefined reference to|multiple definition of) .*)",
        r"\S*/(?P<file>ld)(?:\.\w+)?: (?P<severity>warning(?=: undefined))?(?:error)?(?:: )?"
        r"(?P<text>cannot find .*|undefined reference to .*|.*: multiple definition of .*)",
    )
)
_NVCC = _PATTERNS[1]
# They follow from other messages, or are no fault: a module's Python is there when it is loaded.
_NOISE = re.compile(
    r"Ptx assembly aborted|ld returned 1 exit status|undefined reference to `_?Py[A-Z_]"
    r"|linker command failed|#pragma message"
)
_RESOURCES = re.compile(
    r"Compiling entry function '(?P<entry>\w+)' for '(?P<target>\w+)'"
    r"|Function properties for (?P<function>\w+)"
    r"|(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores,"
    r" (?P<loads>\d+) bytes spill loads"
    r"|Used (?P<registers>\d+) registers(?P<rest>.*)"
)


@dataclass(frozen=True)
class _Place:
    """Lines `first` to `last` of a file that is compiled hold a part of the request."""

    name: str
    first: int
    last: int


def file_names(request: BuildRequest) -> list[str]:
    """The names under which a request's files are compiled; unique, whatever the author's are."""
    return [
        *(f"cpp_{index}.cpp" for index in range(len(request.cpp_sources))),
        *(f"cuda_{index}.cu" for index in range(len(request.cuda_sources))),
    ]


def _places(request: BuildRequest) -> dict[str, list[_Place]]:
    """By the name of the compiled file: which lines the author knows under which name."""
    if request.uses_files:
        known = (*request.cpp_names, *request.cuda_names)
        names = file_names(request)
        return {name: [_Place(own, 1, 1 << 60)] for name, own in zip(names, known, strict=True)}
    places: dict[str, list[_Place]] = {}
    for file, kind, sources, headers in (
        ("main.cpp", "cpp_sources", request.cpp_sources, 1),
        ("cuda.cu", "cuda_sources", request.cuda_sources, 3),
    ):
        line = 1 if request.no_implicit_headers else 1 + headers
        places[file] = []
        for index, text in enumerate(sources):
            # The last line of one source and the first of the next are apart by a line's end.
            count = text.count("\n") + 1
            places[file].append(_Place(f"{kind}[{index}]", line, line + count - 1))
            line += count
        if kind == "cpp_sources":
            places[file].append(_Place("functions", line, 1 << 60))
    return places


def read_diagnostics(output: str, request: BuildRequest) -> tuple[Diagnostic, ...]:
    """The messages in the author's terms, each once: files as "cpp_sources[0]" with its own lines.

    Notes and warnings are kept only where they are about the author's lines. A file named
    "functions" stands for the bindings that torch writes.
    """
    places = _places(request)
    found: dict[tuple[str, int | None, str], Diagnostic] = {}
    for match, text in _matches(output.splitlines()):
        groups = match.groupdict()
        if groups["file"] == "ptxas":
            text = re.sub(r"(?<=')_Z\w+(?=')", lambda name: demangle([name[0]])[name[0]], text)
        file, line, own = _locate(groups["file"], groups.get("line"), places)
        severity = _severity(groups.get("severity"), text)
        if _NOISE.search(text) or (severity != "error" and not own):
            continue
        fatal = "fatal error: " if groups.get("severity") == "fatal error" else ""
        hint = hint_for(fatal + text)
        undeclared = re.search(r"'(\w+)' was not declared in this scope", text)
        if undeclared and file == "functions":
            hint = (
                f"Declare `{undeclared[1]}` in cpp_sources, as in"
                f" `torch::Tensor {undeclared[1]}(torch::Tensor x);`: the bindings are compiled"
                " there, and do not see cuda_sources."
            )
        column = groups.get("column") if own and file != "functions" else None
        diagnostic = Diagnostic(
            file=file,
            line=line,
            column=int(column) if column else None,
            severity=severity,
            message=text[:_MAX_MESSAGE],
            hint=hint,
        )
        found.setdefault((file, line, text), diagnostic)
    # Sorted so that the errors are first; otherwise in the order of printing.
    return tuple(sorted(found.values(), key=lambda d: d.severity != "error")[:MAX_DIAGNOSTICS])


def _matches(lines: list[str]) -> Iterator[tuple[re.Match[str], str]]:
    """Each message with its text, to which nvcc may add further, deeply indented lines."""
    for index, line in enumerate(lines):
        for pattern in _PATTERNS:
            if match := pattern.fullmatch(line):
                text = match["text"]
                if match.re is _NVCC:
                    following = [*lines[index + 1 : index + 7], ""]
                    for more, after in itertools.pairwise(following):
                        if not more.startswith(" " * 12) or after.strip() == "^":
                            break  # the next message, or the line of source with a mark below it
                        text += f"; {more.strip()}"
                yield match, text
                break


def _severity(word: str | None, text: str) -> Severity:
    if word in ("warning", "note") or text.startswith("(C"):
        return "note" if word == "note" else "warning"
    return "error"


def _locate(
    file: str, number: str | None, places: dict[str, list[_Place]]
) -> tuple[str, int | None, bool]:
    """The author's name and line of a place, and whether it is the author's at all."""
    path = PurePath(file)
    line = int(number) if number else None
    if known := places.get(path.name):
        if line is None:  # the linker knows it only with debug information
            return known[0].name.partition("[")[0], None, True
        for place in known:
            if place.first <= line <= place.last:
                generated = place.name == "functions"
                return place.name, None if generated else line - place.first + 1, True
    if path.name in ("ptxas", "nvcc", "ld"):
        return path.name, None, True
    # Of a header only what an author would write to include it.
    return file.rpartition("/include/")[2] or file, line, False


def read_kernels(output: str) -> tuple[KernelResources, ...]:
    """What ptxas -v says of each kernel; functions that are not inlined have no figures here."""
    kernels: list[KernelResources] = []
    entry = target = function = ""
    stack = stores = loads = 0
    for match in _RESOURCES.finditer(output):
        if match["entry"]:
            entry, target = match["entry"], match["target"]
        elif match["function"]:
            function = match["function"]
        elif match["stack"] and function == entry:
            stack, stores, loads = (int(match[name]) for name in ("stack", "stores", "loads"))
        elif match["registers"] and entry:
            rest = match["rest"]
            kernels.append(
                KernelResources(
                    name=entry,
                    architecture=target,
                    registers=int(match["registers"]),
                    shared_bytes=_sum(r"(\d+) bytes smem", rest),
                    constant_bytes=_sum(r"(\d+) bytes cmem", rest),
                    stack_bytes=_sum(r"(\d+) bytes cumulative stack", rest) or stack,
                    spill_store_bytes=stores,
                    spill_load_bytes=loads,
                )
            )
            entry = ""
    names = demangle(kernel.name for kernel in kernels)
    return tuple(kernel.model_copy(update={"name": names[kernel.name]}) for kernel in kernels)


def _sum(pattern: str, text: str) -> int:
    return sum(map(int, re.findall(pattern, text)))


def demangle(names: Iterable[str]) -> dict[str, str]:
    """C++ names as they are written; a name stays as it is where there is no tool for it."""
    listed = list(dict.fromkeys(names))
    program = shutil.which("cu++filt") or shutil.which("c++filt")
    if not listed or program is None:
        return {name: name for name in listed}
    text = "\n".join(listed) + "\n"
    done = subprocess.run([program], input=text, capture_output=True, text=True)
    written = done.stdout.splitlines()
    if done.returncode or len(written) != len(listed):
        written = listed
    return dict(zip(listed, written, strict=True))
