"""A problem in words: what its file says of it, and what a model is given to solve it.

The file is read, and not run.
"""

from __future__ import annotations

import ast
import os
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kernelbench_dist import problems
from kernelbench_dist.harness.static._rules import RULES
from kernelbench_dist.problems import _program


@dataclass(frozen=True)
class Description:
    """What a problem file says. What is computed there, and no constant, is left out."""

    name: str
    path: str
    summary: str
    """the first line of its docstring"""
    doc: str
    constants: Mapping[str, int]
    """the nominal sizes"""
    sizes: Mapping[str, Mapping[str, int]]
    varies: tuple[str, ...]
    right_trivial_answers: tuple[str, ...]
    backward: bool
    deterministic: bool
    world_size: int
    source: str


def describe(problem: str | os.PathLike[str]) -> Description:
    """Read a problem file, given by its path or its name in the suite.

    Raises:
        FileNotFoundError, ProblemError: no such file or name, or no Python in it.
    """
    name, path = problems.find(problem)
    source, tree = _parsed(path)
    doc = ast.get_docstring(tree) or ""
    said = dict(_constants(tree))
    sizes = said.get("SIZES")
    pairs = sizes.items() if isinstance(sizes, dict) else ()
    named = {str(key): values for key, values in pairs if isinstance(values, dict)}
    counts = _program.counts(said)
    world_size = counts.pop("WORLD_SIZE", 1)
    varies = _names(said.get("VARIES"))
    if ranks := problems.ranks_in(name):  # the file's other form, where R is given
        if not any(isinstance(n, ast.ClassDef) and n.name == "RankModel" for n in tree.body):
            raise problems.ProblemError(f"{name}: {path} defines no RankModel")
        world_size = ranks
        counts.pop("R", None)
        named, varies = _program.without_ranks(named, varies)
    return Description(
        name=name,
        path=str(path),
        summary=next(iter(doc.splitlines()), ""),
        doc=doc,
        constants=counts,
        sizes=named,
        varies=varies,
        right_trivial_answers=_names(said.get("RIGHT_TRIVIAL_ANSWERS")),
        backward=bool(said.get("BACKWARD", False)),
        deterministic=bool(said.get("DETERMINISTIC", False)),
        world_size=world_size,
        source=source,
    )


def prompt(problem: str | os.PathLike[str]) -> str:
    """What a model is given: the task, the reference, the rules, and how it is judged.

    Raises:
        FileNotFoundError, ProblemError: as `describe`.

    >>> "class ModelNew" in prompt("47")
    True
    """
    described = describe(problem)
    _, tree = _parsed(described.path)
    return "\n\n".join(part.strip("\n") for part in _parts(described, tree)) + "\n"


def sizes_in_words(d: Description) -> Iterator[str]:
    """Lines that say at which sizes it is judged."""
    if d.constants:
        yield f"- nominal: {_listed(d.constants)}"
    for name, values in d.sizes.items():
        yield f"- {name!r}: {_listed(values)}"
    if d.varies:
        yield f"- {', '.join(d.varies)} varies from draw to draw"
    elif not d.constants and not d.sizes:
        yield "- as get_inputs draws them"


def _parts(d: Description, tree: ast.Module) -> Iterator[str]:
    yield f"# Task: {d.name}"
    model = "RankModel" if problems.ranks_in(d.name) else "Model"
    yield textwrap.dedent(f"""\
        Write one Python file that defines `class ModelNew(torch.nn.Module)`: it computes what
        `{model}` in the reference below computes, in less time. Give the whole file.""")
    if model == "RankModel":
        yield (
            "`Model` there has the same formula on the inputs of all ranks, stacked on dim 0: rank "
            "r's forward takes slice r\nof each input (whole where SHARED names it), and returns "
            'slice r of the output (whole where OUTPUT is "same").'
        )
    if d.world_size > 1:
        yield (
            f"It is a torch.distributed program of {d.world_size} ranks, in an initialised group: "
            "every rank runs the file,\nhas its own inputs, and its outputs are checked. The ranks "
            "may be threads of one process, on one device:\nwhat is timed is then all of them "
            "together."
        )
    yield f"## The reference\n\n```python\n{d.source.strip()}\n```"
    yield "## Sizes\n\n" + "\n".join(sizes_in_words(d))
    yield "## The interface\n\n" + _INTERFACE.format(model=model)
    yield f"A file to start from:\n\n```python\n{_skeleton(tree, model)}\n```"
    yield "## Kinds\n\n" + _KINDS
    yield "## How it is judged\n\n" + "\n".join(_judged(d))
    yield "## What the static check rejects, and what to do instead\n\n" + "\n".join(
        f"- {rule}: {advice}" for rule, (severity, advice) in RULES.items() if severity == "error"
    )


_INTERFACE = """\
- `ModelNew(*get_init_inputs())` is called, with the arguments of `{model}`.
- Its parameters and buffers have the names and shapes that they have in `{model}`: values are
  copied from there by name.
- `forward` takes what `{model}.forward` takes and returns what that returns: plain tensors of the
  same number, shapes, dtypes and device.
- Sizes are read from the arguments. Inputs must not be changed.
- Only the file itself is there: no other files, no network, no other processes."""

_KINDS = """\
`KIND = "..."` at the top level says what the kernels are written in; without it, it is found out.

- "cuda": CUDA C++ by `torch.utils.cpp_extension.load_inline(name=..., cpp_sources=...,
  cuda_sources=..., functions=[...])`; each function is declared in cpp_sources. Launch on
  `at::cuda::getCurrentCUDAStream()`.
- "cpp": C++ for the CPU, by load_inline as well.
- "triton": functions under `@triton.jit`.
- "cute": CUTLASS's Python DSL.
- "torch": torch's own operations.

A file of another kind than "torch" does its work in kernels of its own: one whose time is mostly in
a library's kernels is rejected."""


def _judged(d: Description) -> Iterator[str]:
    yield "- The static check reads the file, then it is built and loaded in a process of its own."
    yield "- Inputs are drawn anew for every trial, from seeds that nobody can guess."
    yield "- Every element is compared with the reference in float64. An error of up to twice the"
    yield "  reference's own in the same dtype is allowed; integers and bools must be equal."
    yield "- It runs with new memory filled with NaN, and then twice as it is."
    if d.deterministic:
        yield "- Two runs on the same inputs must give the same bits."
    else:
        yield "- Two runs on the same inputs must agree within rounding; the bits may differ."
    if d.backward:
        yield "- Gradients of inputs and parameters are compared too."
    yield "- It is then timed against the reference on fresh inputs, in alternation, with a cold"
    yield "  and with a warm L2 cache; outputs of timed calls are compared too. On a CPU, the time"
    yield "  of calls is taken."
    yield '- "faster" and "slower" need a 99 % interval on the ratio beyond 2 %; else it is "same".'


def _skeleton(tree: ast.Module, name: str) -> str:
    """The reference's class as ModelNew, with forward left to be written."""
    lines = [ast.unparse(node) for node in tree.body if _is_wanted_import(node)]
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    model = classes.get(name)
    if model is None:
        return "\n".join([*lines, "", "", "class ModelNew(torch.nn.Module):", "    ..."])
    todo = ast.parse('raise NotImplementedError("compute it here")').body
    body: list[ast.stmt] = []
    bases = [classes.get(ast.unparse(base)) for base in model.bases]  # RankModel may be a Model
    own = {node.name for node in model.body if isinstance(node, ast.FunctionDef)}
    inherited = [
        node
        for base in bases
        if base is not None
        for node in base.body
        if isinstance(node, ast.FunctionDef) and node.name not in own
    ]
    for node in [*inherited, *model.body]:
        if isinstance(node, ast.FunctionDef):
            changed = todo if node.name == "forward" else _without_docstring(node.body)
            body.append(ast.FunctionDef(**{**_fields(node), "body": changed}))
        elif not _is_docstring(node):
            body.append(node)
    new = ast.ClassDef(**{**_fields(model), "name": "ModelNew", "body": body or todo})
    if inherited:
        new.bases = [ast.parse("nn.Module", mode="eval").body]
    return "\n".join([*lines, "", "", ast.unparse(ast.fix_missing_locations(new))])


def _fields(node: ast.AST) -> dict[str, Any]:
    return dict(ast.iter_fields(node))


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    return body[1:] if len(body) > 1 and _is_docstring(body[0]) else body


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_wanted_import(node: ast.stmt) -> bool:
    """Not those of the problem's own helpers, which are no part of a submission."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [node.module or "."]
    else:
        return False
    return not any(n.split(".")[0] in ("kernelbench", "kernelbench_dist", "") for n in names)


def _parsed(path: str | os.PathLike[str]) -> tuple[str, ast.Module]:
    try:
        with open(path, encoding="utf-8") as file:
            source = file.read()
        return source, ast.parse(source, os.fspath(path))
    except SyntaxError as error:
        raise problems.ProblemError(f"{path}:{error.lineno}: {error.msg}") from None
    except ValueError as error:  # not UTF-8, or a NUL
        raise problems.ProblemError(f"{path} is no Python file in UTF-8: {error}") from None


def _constants(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Names at the top level, with values that are literals."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        for target in targets:
            if isinstance(target, ast.Name) and value is not None:
                try:
                    yield target.id, ast.literal_eval(value)
                except (ValueError, TypeError, SyntaxError, RecursionError):
                    continue


def _names(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else ()


def _listed(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
