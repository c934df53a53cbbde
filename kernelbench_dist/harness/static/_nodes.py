"""Findings, and ways through a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_MOST_DOTS = 20


@dataclass(frozen=True)
class Found:
    """What a rule found. `severity` where it is another than the rule's own."""

    rule: str
    line: int
    column: int
    what: str
    severity: str | None = None


def at(node: ast.AST, rule: str, what: str, severity: str | None = None) -> Found:
    """A finding at a node; a comprehension has no place of its own but its target's."""
    place = node.target if isinstance(node, ast.comprehension) else node
    line, column = getattr(place, "lineno", 1), getattr(place, "col_offset", 0) + 1
    return Found(rule, line, column, what, severity)


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it, in the order of the source."""
    todo = [node]
    while todo:
        current = todo.pop()
        yield current
        todo += reversed(list(ast.iter_child_nodes(current)))


def root(node: ast.AST) -> ast.AST:
    """Where a chain of attributes, subscripts and calls begins: x of `x.view(-1)[0].data`."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node


def is_main_guard(node: ast.stmt) -> bool:
    """Whether it is `if __name__ == "__main__":`, without an else."""
    if not isinstance(node, ast.If) or node.orelse or not isinstance(node.test, ast.Compare):
        return False
    sides = (node.test.left, *node.test.comparators)
    names = {s.id for s in sides if isinstance(s, ast.Name)}
    texts = {s.value for s in sides if isinstance(s, ast.Constant)}
    is_equal = isinstance(node.test.ops[0], ast.Eq)
    return len(sides) == 2 and is_equal and names == {"__name__"} and texts == {"__main__"}


def is_short(name: str) -> bool:
    """Whether an attribute of what the name stands for may mean something to a rule."""
    return name.count("()") < 2 and name.count(".") < _MOST_DOTS
