"""Scopes of a file, and what each name in them is bound to."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
FILE = "<file>"  # the root of the dotted names of what the file itself defines


@dataclass(frozen=True)
class Bound:
    """What a name is bound to: an expression, one of its items, a dotted name, or anything.

    `is_argument`: a call in the file gives it for a parameter.
    """

    value: ast.expr | None = None
    dotted: str | None = None
    is_item: bool = False
    is_argument: bool = False


@dataclass(eq=False)
class Scope:
    """A module, class or function. Comprehensions belong to the scope around them."""

    node: ast.AST
    parent: Scope | None
    qualname: str
    names: dict[str, list[Bound]] = field(default_factory=dict)
    shared: dict[str, Scope] = field(default_factory=dict)
    """names that a global or nonlocal statement moves to another scope"""

    @property
    def is_class(self) -> bool:
        return isinstance(self.node, ast.ClassDef)

    def bind(self, name: str, bound: Bound) -> None:
        scope = self.shared.get(name, self)
        scope.names.setdefault(name, []).append(bound)

    def find(self, name: str) -> Scope | None:
        """The scope in which a use of the name here finds it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.shared:
                return scope.shared[name]
            if name in scope.names and (scope is self or not scope.is_class):
                return scope
            scope = scope.parent
        return None


class Scopes:
    """The scope and the parent of each node, and what attributes anywhere are set to."""

    def __init__(self, tree: ast.Module) -> None:
        self.module = Scope(tree, None, "")
        self.of: dict[ast.AST, Scope] = {}
        self.parent: dict[ast.AST, ast.AST] = {}
        self.own: dict[ast.AST, Scope] = {tree: self.module}
        """the scope that a function or class makes"""
        self.attributes: dict[str, list[Bound]] = {}
        self.defined: dict[str, ast.AST] = {}
        """functions and classes of the file by dotted name"""
        self.stars: list[str] = []
        self.nodes: list[ast.AST] = []
        self._visit(tree)
        for node in self.nodes:
            self._share(node)
        for node in self.nodes:
            self._bind(node)

    def _visit(self, tree: ast.Module) -> None:
        # By hand and not by recursion: an expression may be nested more deeply than the stack.
        todo: list[tuple[ast.AST, Scope]] = [(tree, self.module)]
        while todo:
            node, scope = todo.pop()
            self.of[node] = scope
            self.nodes.append(node)
            inner = scope
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                name = getattr(node, "name", "<lambda>")
                inner = Scope(node, scope, f"{scope.qualname}.{name}")
                self.own[node] = inner
            body = set(_body(node)) if inner is not scope else set()
            children = list(ast.iter_child_nodes(node))
            for child in reversed(children):
                self.parent[child] = node
                todo.append((child, inner if child in body else scope))

    def _share(self, node: ast.AST) -> None:
        scope = self.of[node]
        if isinstance(node, ast.Global):
            for name in node.names:
                scope.shared[name] = self.module
        elif isinstance(node, ast.Nonlocal):
            for name in node.names:
                outer = scope.parent
                while outer is not None and (outer.is_class or outer is self.module):
                    outer = outer.parent
                scope.shared[name] = outer or self.module

    def _bind(self, node: ast.AST) -> None:
        scope = self.of[node]
        if isinstance(node, ast.Import):
            for alias in node.names:
                dotted = alias.name if alias.asname else alias.name.partition(".")[0]
                scope.bind(alias.asname or dotted, Bound(dotted=dotted))
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                if alias.name == "*":
                    self.stars.append(module)
                else:
                    dotted = f"{module}.{alias.name}".replace("..", ".")
                    scope.bind(alias.asname or alias.name, Bound(dotted=dotted))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            dotted = FILE + self.own[node].qualname
            self.defined[dotted] = node
            scope.bind(node.name, Bound(dotted=dotted))
            if scope.is_class:
                self.attributes.setdefault(node.name, []).append(Bound(dotted=dotted))
        if isinstance(node, FUNCTIONS):
            for arg, default in parameters(node.args):
                self.own[node].bind(arg.arg, Bound(value=default))
        for target, bound in _targets(node):
            self._set(target, bound, scope)

    def _set(self, target: ast.expr, bound: Bound, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            scope.bind(target.id, bound)
            if scope.is_class:
                self.attributes.setdefault(target.id, []).append(bound)
        elif isinstance(target, ast.Attribute):
            self.attributes.setdefault(target.attr, []).append(bound)
        elif isinstance(target, ast.Starred):
            self._set(target.value, Bound(), scope)
        elif isinstance(target, (ast.Tuple, ast.List)):
            value = bound.value
            pairs = (
                isinstance(value, (ast.Tuple, ast.List))
                and len(value.elts) == len(target.elts)
                and not bound.is_item
            )
            for i, item in enumerate(target.elts):
                if pairs and isinstance(value, (ast.Tuple, ast.List)):
                    self._set(item, Bound(value=value.elts[i]), scope)
                else:
                    self._set(item, Bound(), scope)


def parameters(args: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """Each parameter with its default."""
    plain = [*args.posonlyargs, *args.args]
    missing = len(plain) - len(args.defaults)
    for i, arg in enumerate(plain):
        yield arg, args.defaults[i - missing] if i >= missing else None
    yield from zip(args.kwonlyargs, args.kw_defaults, strict=True)
    for extra in (args.vararg, args.kwarg):
        if extra is not None:
            yield extra, None


def given(args: ast.arguments, call: ast.Call, is_method: bool) -> Iterator[tuple[str, ast.expr]]:
    """What a call gives for each parameter. Of a method the first is the object, if it is self."""
    plain = [a.arg for a in (*args.posonlyargs, *args.args)]
    if is_method and plain[:1] in (["self"], ["cls"], ["ctx"]):
        plain = plain[1:]
    for name, value in zip(plain, call.args, strict=False):
        if isinstance(value, ast.Starred):
            break
        yield name, value
    known = {a.arg for a, _ in parameters(args)}
    for keyword in call.keywords:
        if keyword.arg in known and keyword.arg is not None:
            yield keyword.arg, keyword.value


def _body(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.Lambda):
        return [node.body]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return list(node.body)
    return []


def _targets(node: ast.AST) -> Iterator[tuple[ast.expr, Bound]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, Bound(value=node.value)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
        if node.value is not None:
            yield node.target, Bound(value=node.value)
    elif isinstance(node, ast.AugAssign):
        yield node.target, Bound()
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield node.target, Bound(value=node.iter, is_item=True)
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        for item in node.items:
            if item.optional_vars is not None:
                yield item.optional_vars, Bound(value=item.context_expr)
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        yield ast.Name(node.name, ast.Store()), Bound()
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield ast.Name(node.rest, ast.Store()), Bound()
