"""Rules about forward's arguments: to be used, and not to be changed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernelbench_dist.harness.static._code import Code
from kernelbench_dist.harness.static._flow import (
    METADATA,
    Flow,
    own_nodes,
    own_parameters,
    statements,
)
from kernelbench_dist.harness.static._nodes import Found, at, root
from kernelbench_dist.harness.static._words import words

_HARMLESS = frozenset(["requires_grad_", "retain_grad_", "share_memory_"])
_VIEWS = words(
    """
    view reshape transpose permute t T mT flatten squeeze unsqueeze expand narrow select unbind
    split chunk detach data contiguous movedim view_as unflatten swapaxes float real
    """
)


def changed(code: Code) -> Iterator[Found]:
    """Operations in place on an argument, or on a view of one."""
    function = code.forward
    if function is None:
        return
    args = set(own_parameters(function))
    for statement in statements(function):
        for node in own_nodes(statement):
            if isinstance(node, ast.Call):
                for name in _written(code, node, args):
                    yield at(node, "changes-inputs", f"changes {name}, an argument of forward")
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = [t for t in statement.targets if not isinstance(t, ast.Name)]
        elif isinstance(statement, ast.AugAssign):
            targets = [statement.target]
        for target in targets:
            start = root(target)
            is_attribute = isinstance(target, ast.Attribute) and target.attr != "data"
            if isinstance(start, ast.Name) and start.id in args and not is_attribute:
                yield at(statement, "changes-inputs", f"changes {start.id}, an argument of forward")
        if isinstance(statement, ast.Assign):
            is_view = _is_view(statement.value, args)
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    (args.add if is_view else args.discard)(target.id)


def _is_view(node: ast.expr, args: set[str]) -> bool:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Attribute):
                return False
            node = node.func
        elif isinstance(node, ast.Attribute):
            if node.attr not in _VIEWS or node.attr in METADATA:
                return False
            node = node.value
        else:
            node = node.value
    return isinstance(node, ast.Name) and node.id in args


def _written(code: Code, call: ast.Call, args: set[str]) -> Iterator[str]:
    func = call.func
    if isinstance(func, ast.Attribute) and _is_in_place(func.attr):
        for target in (func.value, *call.args[:1]):
            # x.add_(1) changes x, torch.relu_(x) its first argument, y.copy_(x) only y.
            names = code.resolve(func)
            is_torch = any(n.startswith("torch.") and "()" not in n for n in names)
            if target is not func.value and not is_torch:
                continue
            if _is_view(target, args) and isinstance(start := root(target), ast.Name):
                yield start.id
    for keyword in call.keywords:
        if keyword.arg == "out" and _is_view(keyword.value, args):
            yield from _root_name(keyword.value)
        is_in_place = keyword.arg == "inplace" and code.fold(keyword.value) is True
        if is_in_place and call.args and _is_view(call.args[0], args):
            yield from _root_name(call.args[0])


def _root_name(node: ast.AST) -> Iterator[str]:
    start = root(node)
    if isinstance(start, ast.Name):
        yield start.id


def _is_in_place(attr: str) -> bool:
    return (
        attr.endswith("_") and not attr.endswith("__") and attr[0] != "_" and attr not in _HARMLESS
    )


def ignored(code: Code) -> Iterator[Found]:
    """A forward whose result depends on no argument's values."""
    function = code.forward
    if function is None:
        return
    names = own_parameters(function)
    if not names or any(
        isinstance(n, ast.Name) and n.id in ("locals", "eval", "exec") for n in ast.walk(function)
    ):
        return
    flow = Flow(code, names)
    returned: list[ast.expr] = []
    # Twice, for what a loop carries from one round to the next.
    for _ in range(2):
        returned = []
        for statement in statements(function):
            if isinstance(statement, ast.Return) and statement.value is not None:
                if flow.depends(statement.value) or _calls_self(statement.value, flow):
                    return
                returned.append(statement.value)
            flow.step(statement)
            flow.names.update(_kept(statement, flow))
            if "self" in flow.names:
                return
    if returned and not any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in ast.walk(function)):
        yield at(returned[-1], "ignores-inputs", "returns what depends on none of its arguments")


def _kept(statement: ast.stmt, flow: Flow) -> Iterator[str]:
    """Values may go round by way of an attribute: self.out, or a buffer of one."""
    for node in own_nodes(statement):
        if isinstance(node, ast.Call) and isinstance(statement, (ast.Expr, ast.Assign)):
            parts = [*node.args, *(k.value for k in node.keywords)]
            mentions = {n.id for p in parts for n in ast.walk(p) if isinstance(n, ast.Name)}
            if mentions & flow.names and "self" in mentions and isinstance(statement, ast.Expr):
                yield "self"
    if isinstance(statement, ast.Assign) and flow.depends(statement.value):
        starts = (root(target) for target in statement.targets)
        yield from (s.id for s in starts if isinstance(s, ast.Name) and s.id == "self")


def _calls_self(node: ast.expr, flow: Flow) -> bool:
    """f(x.data_ptr(), ...) uses x through its pointer."""
    return any(
        isinstance(n, ast.Attribute)
        and n.attr in ("data_ptr", "__cuda_array_interface__")
        and isinstance(start := root(n), ast.Name)
        and start.id in flow.names
        for n in ast.walk(node)
    )
