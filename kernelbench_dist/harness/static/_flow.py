"""What in a function depends on its arguments' values, statement by statement."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernelbench_dist.harness.static._code import Code, Function
from kernelbench_dist.harness.static._nodes import root, walk
from kernelbench_dist.harness.static._scopes import parameters
from kernelbench_dist.harness.static._words import words

METADATA = words(
    """
    shape dtype device ndim is_cuda layout requires_grad itemsize nbytes names is_sparse
    _version grad_fn
    """
)
_METADATA_CALLS = words(
    """
    size dim data_ptr numel stride element_size is_contiguous get_device new_empty new_zeros
    new_ones new_full storage_offset nelement untyped_storage storage ndimension
    """
)
_METADATA_FUNCTIONS = words(
    """
    builtins.id builtins.len builtins.isinstance builtins.type builtins.hasattr
    builtins.callable torch.empty_like torch.zeros_like torch.ones_like torch.full_like
    torch.is_tensor torch.numel torch.promote_types torch.result_type
    """
)
_LIKE = frozenset(["to", "type_as", "expand_as", "view_as", "reshape_as", "new_tensor"])


def own_parameters(function: Function) -> list[str]:
    """Names of the parameters, without self."""
    names = [arg.arg for arg, _ in parameters(function.args)]
    return names[1:] if names[:1] in (["self"], ["cls"], ["ctx"]) else names


def statements(function: Function) -> Iterator[ast.stmt]:
    """All statements in the order of the source, those of inner functions included."""
    for node in walk(function):
        if isinstance(node, ast.stmt) and node is not function:
            yield node


def own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """The statement and its expressions, without the statements inside of it."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        yield node
        todo += (c for c in ast.iter_child_nodes(node) if not _holds_statements(c))


def _holds_statements(node: ast.AST) -> bool:
    return isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case))


class Flow:
    """Follows the arguments' values through a function.

    Args:
        metadata_counts: whether what depends on shapes, pointers and the like alone is followed.
    """

    def __init__(self, code: Code, names: list[str], *, metadata_counts: bool = False) -> None:
        self.code, self.names = code, set(names)
        self._metadata_counts = metadata_counts

    def depends(self, node: ast.AST | None) -> bool:
        """Whether the expression depends on what is followed."""
        todo: list[ast.AST] = [node] if node is not None else []
        while todo:
            part = todo.pop()
            if isinstance(part, ast.Name):
                if part.id in self.names:
                    return True
            elif self._metadata_counts:
                todo += ast.iter_child_nodes(part)
            elif isinstance(part, ast.Attribute):
                if part.attr not in METADATA:
                    todo.append(part.value)
            elif isinstance(part, ast.Call):
                todo += self._parts(part)
            else:
                todo += ast.iter_child_nodes(part)
        return False

    def _parts(self, call: ast.Call) -> list[ast.AST]:
        func = call.func
        names = self.code.resolve(func)
        # What compiles for given arguments (cute.compile) gives code, and no values.
        if names & _METADATA_FUNCTIONS or any(n.endswith(".compile") for n in names):
            return []
        if isinstance(func, ast.Attribute):
            if func.attr in _METADATA_CALLS:
                return []
            if func.attr in _LIKE:
                return [func.value]
        return [func, *call.args, *(k.value for k in call.keywords)]

    def step(self, statement: ast.stmt) -> None:
        """Take a statement into account: what it assigns, and what its calls may write to."""
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                self._assign(target, self.depends(statement.value))
        elif isinstance(statement, ast.AnnAssign):
            self._assign(statement.target, self.depends(statement.value))
        elif isinstance(statement, ast.AugAssign):
            if self.depends(statement.value):
                self._assign(statement.target, True)
        elif isinstance(statement, (ast.For, ast.AsyncFor)):
            self._assign(statement.target, self.depends(statement.iter))
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, self.depends(item.context_expr))
        elif isinstance(statement, ast.Expr):
            self._written(statement.value)
        for node in own_nodes(statement):
            if isinstance(node, ast.NamedExpr):
                self._assign(node.target, self.depends(node.value))

    def _assign(self, target: ast.expr, depends: bool) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for item in target.elts:
                self._assign(item, depends)
        elif isinstance(target, ast.Name):
            (self.names.add if depends else self.names.discard)(target.id)
        elif depends and isinstance(start := root(target), ast.Name) and start.id != "self":
            self.names.add(start.id)

    def _written(self, node: ast.expr) -> None:
        """A call whose result is not used writes to its arguments: kernel(x, out)."""
        call = node.value if isinstance(node, ast.Await) else node
        if not isinstance(call, ast.Call):
            return
        parts = [call, *call.args, *(k.value for k in call.keywords)]
        if any(self.depends(p) or self._points(p) for p in parts):
            for part in parts:
                for name in ast.walk(part):
                    if isinstance(name, ast.Name) and name.id != "self":
                        self.names.add(name.id)

    def _points(self, node: ast.AST) -> bool:
        """Whether it hands on a pointer to what is followed: kernel(x.data_ptr(), ...)."""
        return any(
            isinstance(n, ast.Call)
            and isinstance(n.func, ast.Attribute)
            and n.func.attr == "data_ptr"
            and isinstance(start := root(n.func), ast.Name)
            and start.id in self.names
            for n in ast.walk(node)
        )
