"""What cuobjdump prints, read into `KernelCode`: text in, values out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kernelbench_dist.harness._results import KernelResources
from kernelbench_dist.harness.profile._results import KernelCode

_FUNCTION = re.compile(r"\s*Function\s*:?\s*(?P<name>[\w$.]+):?\s*$")
_ARCHITECTURE = re.compile(r"\s*(?:arch =|code for) (?P<name>sm_\w+)\s*$")
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?\w+\s+)?(?P<code>[A-Z][\w.]*)")
_USAGE = re.compile(r"\b(REG|STACK|SHARED):(\d+)")
_BITS = {"256": 256, "128": 128, "64": 64, "U16": 16, "S16": 16, "U8": 8, "S8": 8}
_TENSOR = ("HMMA", "HGMMA", "IMMA", "IGMMA", "DMMA", "QGMMA", "QMMA", "BMMA", "BGMMA")


@dataclass
class _Code:
    name: str
    architecture: str
    instructions: list[str] = field(default_factory=list)

    def count(self, *names: str) -> int:
        return sum(code.partition(".")[0] in names for code in self.instructions)

    def by_bits(self, name: str) -> dict[int, int]:
        found: dict[int, int] = {}
        for code in self.instructions:
            first, *rest = code.split(".")
            if first == name:
                bits = next((_BITS[part] for part in rest if part in _BITS), 32)
                found[bits] = found.get(bits, 0) + 1
        return dict(sorted(found.items()))


def read_sass(
    sass: str,
    usage: str = "",
    built: Sequence[KernelResources] = (),
    names: dict[str, str] | None = None,
) -> tuple[KernelCode, ...]:
    """The kernels of one file.

    Args:
        sass, usage: what --dump-sass and --dump-resource-usage print.
        built: what the assembler said when it was built, which alone tells spills from arrays.
        names: readable names by those in the file.
    """
    resources = dict(_resources(usage.splitlines()))
    found = []
    for code in _codes(sass.splitlines()):
        held = resources.get((code.name, code.architecture), {})
        name = (names or {}).get(code.name, code.name)
        said = _said(built, name, code.architecture)
        found.append(
            KernelCode(
                name=name,
                architecture=code.architecture,
                instructions=len(code.instructions),
                registers=held.get("REG"),
                stack_bytes=held.get("STACK"),
                shared_bytes=held.get("SHARED"),
                spill_store_bytes=said.spill_store_bytes if said else None,
                spill_load_bytes=said.spill_load_bytes if said else None,
                local_stores=code.count("STL"),
                local_loads=code.count("LDL"),
                global_loads_by_bits=code.by_bits("LDG"),
                global_stores_by_bits=code.by_bits("STG"),
                shared_loads_by_bits=code.by_bits("LDS"),
                shared_stores_by_bits=code.by_bits("STS"),
                async_copies=code.count("LDGSTS", "UTMALDG", "UBLKCP"),
                tensor_instructions=code.count(*_TENSOR),
                barriers=code.count("BAR"),
            )
        )
    return tuple(found)


def function_names(sass: str) -> list[str]:
    return [code.name for code in _codes(sass.splitlines())]


def _codes(lines: Iterable[str]) -> Iterator[_Code]:
    architecture, code = "", None
    for line in lines:
        if match := _ARCHITECTURE.match(line):
            architecture = match["name"]
        elif match := _FUNCTION.match(line):
            if code is not None:
                yield code
            code = _Code(match["name"], architecture)
        elif code is not None and (match := _INSTRUCTION.match(line)):
            code.instructions.append(match["code"])
    if code is not None:
        yield code


def _resources(lines: Iterable[str]) -> Iterator[tuple[tuple[str, str], dict[str, int]]]:
    architecture, name = "", None
    for line in lines:
        if match := _ARCHITECTURE.match(line):
            architecture = match["name"]
        elif match := _FUNCTION.match(line):
            name = match["name"]
        elif name is not None and "REG:" in line:
            yield (name, architecture), {key: int(n) for key, n in _USAGE.findall(line)}
            name = None


def _said(built: Sequence[KernelResources], name: str, architecture: str) -> KernelResources | None:
    same = [k for k in built if k.architecture == architecture and k.name == name]
    return same[0] if len(same) == 1 else None
