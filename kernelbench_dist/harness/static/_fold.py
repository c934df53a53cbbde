"""Values of constant expressions, so that a name glued from parts is read as one name."""

from __future__ import annotations

import ast
import base64
import codecs
import inspect
import operator
import re
import textwrap
from collections.abc import Callable
from typing import Any

from kernelbench_dist.harness.static._words import words

_MOST = 1 << 20  # characters or items of a value; what is larger is not a name
_MOST_DEPTH = 100
_MOST_STEPS = 50_000  # a = b + b; b = c + c; ... doubles the work with each line
_CODECS = frozenset(["rot13", "rot_13", "hex", "base64", "utf-8", "utf8", "ascii", "latin-1"])


class NotConstant(Exception):  # noqa: N818 - it is an answer, and leaves this module as None
    """The expression's value does not follow from the file."""


Lookup = Callable[[ast.expr], ast.expr | None]
Callee = Callable[[ast.expr], frozenset[str]]

_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.BitXor: operator.xor,
    ast.FloorDiv: operator.floordiv,
}
_METHODS: dict[type, frozenset[str]] = {
    str: words(
        """
    join format replace lower upper strip lstrip rstrip split title swapcase capitalize encode
    removeprefix removesuffix translate casefold
    """
    ),
    bytes: frozenset(["decode", "join", "hex", "replace", "strip", "split"]),
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "builtins.chr": chr,
    "builtins.ord": ord,
    "builtins.str": str,
    "builtins.int": int,
    "builtins.bytes": bytes,
    "builtins.bytearray": bytes,
    "builtins.list": list,
    "builtins.tuple": tuple,
    "builtins.reversed": lambda x: list(reversed(x)),
    "builtins.bytes.fromhex": bytes.fromhex,
    "base64.b64decode": base64.b64decode,
    "base64.b32decode": base64.b32decode,
    "base64.b16decode": base64.b16decode,
    "codecs.decode": lambda text, codec="utf-8": codecs.decode(text, _known(codec)),
    "builtins.map": lambda f, *a: [f(*x) for x in zip(*a, strict=False)],
    "textwrap.dedent": textwrap.dedent,
    "inspect.cleandoc": inspect.cleandoc,
}


class Folder:
    """Folds expressions of one file.

    Args:
        lookup: the expression that a name or attribute is bound to, None where there are several.
        callee: the dotted names that the function of a call may stand for.
    """

    def __init__(self, lookup: Lookup, callee: Callee) -> None:
        self._lookup, self._callee = lookup, callee
        self._steps = self._depth = 0

    def value(self, node: ast.AST, local: dict[str, Any] | None = None) -> Any:
        """The value, or None where it is not constant (or is None)."""
        if self._depth == 0:
            self._steps = 0
        depth = self._depth
        try:
            return self._value(node, local or {})
        # Whatever goes wrong in folding (a bad index, bytes that are no UTF-8) would go wrong when
        # it ran: it has no value either way.
        except (NotConstant, ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
            return None
        finally:
            self._depth = depth

    def _value(self, node: ast.AST, local: dict[str, Any]) -> Any:
        self._steps += 1
        self._depth += 1
        if self._steps > _MOST_STEPS or self._depth > _MOST_DEPTH:
            raise NotConstant
        value = self._parts(node, local)
        self._depth -= 1
        return value

    def _parts(self, node: ast.AST, local: dict[str, Any]) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and node.id in local:
            return local[node.id]
        if isinstance(node, (ast.Name, ast.Attribute)):
            bound = self._lookup(node)
            if bound is None or bound is node:
                raise NotConstant
            return self._value(bound, {})
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = self._value(node.left, local), self._value(node.right, local)
            if isinstance(node.op, ast.Mult) and _length(left) * _length(right) > _MOST:
                raise NotConstant
            if isinstance(node.op, ast.Mod) and re.search(r"%[^a-z%]*(\d{5}|\*)", str(left)):
                raise NotConstant
            return _OPERATORS[type(node.op)](left, right)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._value(node.operand, local)
        if isinstance(node, ast.JoinedStr):
            return "".join(self._piece(part, local) for part in node.values)
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self._value(item, local) for item in node.elts]
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)) and len(node.generators) == 1:
            return self._comprehension(node, local)
        if isinstance(node, ast.Subscript):
            return self._value(node.value, local)[self._index(node.slice, local)]
        if isinstance(node, ast.Call) and not any(isinstance(a, ast.Starred) for a in node.args):
            return self._call(node, local)
        raise NotConstant

    def _piece(self, part: ast.expr, local: dict[str, Any]) -> str:
        if isinstance(part, ast.FormattedValue):
            if part.format_spec is not None:
                raise NotConstant
            return str(self._value(part.value, local))
        return str(self._value(part, local))

    def _index(self, node: ast.expr, local: dict[str, Any]) -> Any:
        if isinstance(node, ast.Slice):
            bounds = (node.lower, node.upper, node.step)
            return slice(*(None if b is None else self._value(b, local) for b in bounds))
        return self._value(node, local)

    def _comprehension(
        self, node: ast.ListComp | ast.GeneratorExp, local: dict[str, Any]
    ) -> list[Any]:
        loop = node.generators[0]
        if loop.ifs or not isinstance(loop.target, ast.Name):
            raise NotConstant
        items = self._value(loop.iter, local)
        if len(items) > _MOST:
            raise NotConstant
        return [self._value(node.elt, {**local, loop.target.id: item}) for item in items]

    def _call(self, node: ast.Call, local: dict[str, Any]) -> Any:
        for name in self._callee(node.func):
            if name == "builtins.map" and node.args:
                inner = [_FUNCTIONS[n] for n in self._callee(node.args[0]) if n in _FUNCTIONS]
                rest = [self._value(a, local) for a in node.args[1:]]
                return _FUNCTIONS[name](inner[0], *rest)
            if name in _FUNCTIONS:
                args = [self._value(a, local) for a in node.args]
                # bytes(10**12) would fill the memory.
                if any(isinstance(a, int) and abs(a) > _MOST for a in args):
                    raise NotConstant
                return _FUNCTIONS[name](*args)
        if isinstance(node.func, ast.Attribute):
            subject = self._value(node.func.value, local)
            if node.func.attr in _METHODS.get(type(subject), ()):
                # A format such as "{:999999999}" would make a text as long as it says.
                if node.func.attr == "format" and ":" in subject:
                    raise NotConstant
                args = [self._value(a, local) for a in node.args]
                if len(subject) * max(map(_length, args), default=1) > _MOST:
                    raise NotConstant
                words = {k.arg: self._value(k.value, local) for k in node.keywords if k.arg}
                return getattr(subject, node.func.attr)(*args, **words)
        raise NotConstant


def _known(codec: str) -> str:
    """The codec, unless it is one that makes much out of little."""
    if codec not in _CODECS:
        raise NotConstant
    return codec


def _length(value: Any) -> int:
    if isinstance(value, (str, bytes, list)):
        return max(len(value), 1)
    return abs(int(value)) if isinstance(value, (int, float)) else 1
