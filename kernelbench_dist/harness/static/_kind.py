"""The kind of a submission: what its kernels are written in."""

from __future__ import annotations

import ast
from typing import get_args

from kernelbench_dist.harness._results import Kind
from kernelbench_dist.harness.static._code import Code

KINDS: tuple[Kind, ...] = get_args(Kind)

BUILDERS = {
    "torch.utils.cpp_extension.load_inline": ("cuda_sources", 2),
    "torch.utils.cpp_extension.load": ("sources", 1),
}
# Functions that take CUDA source, apart from those above.
CUDA_COMPILERS = (
    "torch.cuda._compile_kernel",
    "cupy.RawKernel",
    "cupy.RawModule",
    "cupy.ElementwiseKernel",
    "cupy.ReductionKernel",
    "pycuda.compiler.SourceModule",
    "cuda.bindings.nvrtc.nvrtcCreateProgram",
    "cuda.nvrtc.nvrtcCreateProgram",
)


def declared_kind(tree: ast.Module) -> Kind | None:
    """What `KIND = "..."` at the top level says, None without one.

    Raises ValueError where it is not one of the kinds.
    """
    found: Kind | None = None
    for node in tree.body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign) and node.value is not None
            else []
        )
        if not any(isinstance(t, ast.Name) and t.id == "KIND" for t in targets):
            continue
        assert isinstance(node, (ast.Assign, ast.AnnAssign))
        value = node.value.value if isinstance(node.value, ast.Constant) else None
        if value not in KINDS:
            shown = "an expression" if value is None else repr(value)
            accepted = ", ".join(repr(kind) for kind in KINDS)
            raise ValueError(f"KIND is {shown} (line {node.lineno}); accepted: {accepted}")
        found = next(kind for kind in KINDS if kind == value)
    return found


def find_kind(code: Code) -> Kind:
    """The kind as the file's calls and imports show it."""
    found: set[Kind] = set()
    for call in code.calls:
        for name in code.resolve(call.func):
            if name in BUILDERS:
                found.add("cuda" if _has_cuda(code, call, *BUILDERS[name]) else "cpp")
            elif name in CUDA_COMPILERS:
                found.add("cuda")
    for node in code.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for decorator in node.decorator_list:
                target = decorator.func if isinstance(decorator, ast.Call) else decorator
                names = code.resolve(target)
                if any(n.startswith("triton.") for n in names):
                    found.add("triton")
        elif isinstance(node, (ast.Import, ast.ImportFrom)) and _is_cute(node):
            found.add("cute")
    order: tuple[Kind, ...] = ("cuda", "cute", "triton", "cpp")
    return next((kind for kind in order if kind in found), "torch")


def _has_cuda(code: Code, call: ast.Call, keyword: str, position: int) -> bool:
    if any(k.arg == "with_cuda" and code.fold(k.value) is True for k in call.keywords):
        return True
    sources = [k.value for k in call.keywords if k.arg == keyword]
    if len(call.args) > position:
        sources.append(call.args[position])
    if keyword == "cuda_sources":
        # An empty text or list, or None, is no source.
        return any(
            not isinstance(s, ast.Constant | ast.List) or bool(code.fold(s)) for s in sources
        )
    texts = (item for s in sources for item in (code.fold(s) or _items(code, s)))
    return any(isinstance(text, str) and text.endswith((".cu", ".cuh")) for text in texts)


def _items(code: Code, node: ast.expr) -> list[object]:
    """Of a list of paths, those parts that are constant."""
    parts = (n for item in code.items(node) or [node] for n in ast.walk(item))
    return [n.value for n in parts if isinstance(n, ast.Constant)]


def _is_cute(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom):
        return not node.level and (node.module or "").partition(".")[0] == "cutlass"
    return any(a.name.partition(".")[0] == "cutlass" for a in node.names)
