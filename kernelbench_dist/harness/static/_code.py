"""A file as the rules see it: what names stand for, and what `forward` reaches."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from typing import Any

from kernelbench_dist.harness.static._fold import Folder
from kernelbench_dist.harness.static._nodes import is_short, walk
from kernelbench_dist.harness.static._scopes import FILE, FUNCTIONS, Bound, Scope, Scopes, given
from kernelbench_dist.harness.static._words import words

Function = ast.FunctionDef | ast.AsyncFunctionDef
Names = frozenset[str]

_NONE: Names = frozenset()
_MOST_NAMES = 40  # that one expression may stand for
_MOST_DEPTH = 80  # of names that stand for names; Python's own stack allows about twice that
_MOST_STEPS = 200_000  # after these, answers that a cycle cut short count as whole
_CONTAINERS = words(
    "builtins.list builtins.tuple builtins.iter builtins.reversed torch.nn.ModuleList"
    " torch.nn.Sequential"
)
# What these return is the first argument, or behaves as it does.
_TRANSPARENT = words(
    "functools.partial functools.wraps builtins.staticmethod torch.compile torch.jit.script"
    " torch.no_grad() torch.inference_mode() weakref.ref weakref.proxy"
)
_JIT_ROOTS = ("triton.", "cutlass.", "numba.", "tilelang.", "warp.")


class Code:
    """A parsed file. No method runs any of it."""

    def __init__(self, tree: ast.Module, kind: str) -> None:
        self.tree, self.kind = tree, kind
        self.scopes = Scopes(tree)
        self.nodes = self.scopes.nodes
        self._resolved: dict[ast.AST, Names] = {}
        # Answers that a cycle cut short: they hold for the question that led to them only.
        self._partial: dict[ast.AST, Names] = {}
        self._busy: set[ast.AST] = set()
        self._was_cut = False
        self._steps = 0
        self._returns: dict[str, list[ast.expr]] = {}
        self._folder = Folder(self._only_value, self.resolve)
        self.calls = [n for n in self.nodes if isinstance(n, ast.Call)]
        self.is_too_deep = False
        self._resolve_all()
        if self._bind_arguments():
            self._resolved.clear()
            self._returns.clear()
            self._resolve_all()
        self.model = self._class(FILE + ".ModelNew")
        self.forward = self.method(self.model, "forward") if self.model else None
        self.reached = self._reach()

    def _resolve_all(self) -> None:
        """Resolve all there is: statement by statement, and the inner parts before the outer ones.

        So no question needs a deep recursion, however deeply an expression is nested.
        """
        waiting: list[ast.AST] = []
        for node in [*self.nodes, ast.Pass()]:
            if isinstance(node, ast.stmt):
                while waiting:
                    self.resolve(waiting.pop())
            waiting.append(node)

    def _bind_arguments(self) -> bool:
        """Bind the parameters of the file's functions to what its calls give for them."""
        added: list[tuple[Scope, str, ast.expr]] = []
        for call in self.calls:
            direct = [call.func] if isinstance(call.func, ast.Lambda) else []
            names = [] if direct else sorted(self.resolve(call.func))
            for function in [*direct, *(self.scopes.defined.get(name) for name in names)]:
                is_method = isinstance(call.func, ast.Attribute)
                if isinstance(function, ast.ClassDef):
                    function, is_method = self.method(function, "__init__"), True
                if isinstance(function, FUNCTIONS):
                    own = self.scopes.own[function]
                    added += [(own, n, v) for n, v in given(function.args, call, is_method)]
        for scope, name, value in added:
            scope.names.setdefault(name, []).append(Bound(value=value, is_argument=True))
        return bool(added)

    # What an expression stands for

    def resolve(self, node: ast.AST | None) -> Names:
        """The dotted names that an expression may stand for: "torch.cuda.Event", "os._exit", ...

        What a call returns is "torch.cuda.Event()"; what the file defines is "<file>.ModelNew".
        An attribute of what is not known is looked up among all attributes that the file sets.
        """
        if node is None:
            return _NONE
        if (known := self._resolved.get(node)) is not None:
            return known
        if node in self._busy or node in self._partial or len(self._busy) >= _MOST_DEPTH:
            self._was_cut = True
            self.is_too_deep |= len(self._busy) >= _MOST_DEPTH and node not in self._busy
            return self._partial.get(node, _NONE)
        outer, self._was_cut = self._was_cut, False
        self._busy.add(node)
        self._steps += 1
        try:
            names = self._resolve(node)
        finally:
            self._busy.discard(node)
        if len(names) > _MOST_NAMES:
            names = frozenset(sorted(names)[:_MOST_NAMES])
        is_whole = not self._was_cut or not self._busy or self._steps > _MOST_STEPS
        (self._resolved if is_whole else self._partial)[node] = names
        if not self._busy:
            self._partial.clear()
        self._was_cut = outer or not is_whole
        return names

    def _resolve(self, node: ast.AST) -> Names:
        if isinstance(node, ast.Name):
            return self._name(self.scopes.of.get(node, self.scopes.module), node.id)
        if isinstance(node, ast.Attribute):
            return self.attribute(node.value, node.attr)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.IfExp):
            return self.resolve(node.body) | self.resolve(node.orelse)
        if isinstance(node, ast.BoolOp):
            return _union(self.resolve(v) for v in node.values)
        if isinstance(node, (ast.NamedExpr, ast.Starred, ast.Await)):
            return self.resolve(node.value)
        return _NONE

    def _name(self, scope: Scope, name: str) -> Names:
        if name == "__builtins__":
            return frozenset(["builtins"])
        found = scope.find(name)
        if found is not None and name in found.names:
            return _union(self._bound(b) for b in found.names[name])
        if hasattr(builtins, name):
            return frozenset([f"builtins.{name}"])
        return frozenset(f"{module}.{name}" for module in self.scopes.stars)

    def _bound(self, bound: Bound) -> Names:
        if bound.dotted is not None:
            return frozenset([bound.dotted])
        if bound.value is None:
            return _NONE
        if bound.is_item:
            return _union(self.resolve(item) for item in self.items(bound.value))
        return self.resolve(bound.value)

    def attribute(self, owner: ast.expr, attr: str) -> Names:
        """What `owner.attr` may stand for."""
        owners = self.resolve(owner)
        names = {f"{name}.{attr}" for name in owners if is_short(name)}
        if not owners or any(name.startswith(FILE) for name in owners):
            names |= _union(self._bound(b) for b in self.scopes.attributes.get(attr, ()))
        return frozenset(names)

    def _call(self, node: ast.Call) -> Names:
        found: set[str] = set()
        args = node.args
        for name in self.resolve(node.func):
            last = name.rpartition(".")[2]
            if name == "builtins.getattr" and len(args) >= 2:
                attr = self.fold(args[1])
                found |= self.attribute(args[0], attr) if isinstance(attr, str) else set()
                found |= self.resolve(args[2]) if len(args) > 2 else set()
            elif name in ("builtins.__import__", "importlib.import_module") and args:
                module = self.fold(args[0])
                if isinstance(module, str):
                    is_top = name.startswith("builtins") and len(args) < 4
                    found.add(module.partition(".")[0] if is_top else module)
            elif name == "builtins.eval" and args:
                found |= self._evaluated(args[0])
            elif name == "builtins.vars" and args:
                found |= {f"{n}.__dict__" for n in self.resolve(args[0])}
            elif name in ("builtins.globals", "builtins.vars", "builtins.locals"):
                found.add("<globals>")
            elif name in _TRANSPARENT and args:
                found |= self.resolve(args[0])
            elif name == "operator.attrgetter()" and args:
                for path in self._strings(node.func):
                    found |= {f"{n}.{path}" for n in self.resolve(args[0])}
            elif last in ("get", "__getitem__", "pop", "setdefault") and args:
                found |= self._item(name.rpartition(".")[0], args[0])
                found |= {f"{name}()"} if name.count("()") == 0 else set()
            elif last in ("__getattribute__", "__getattr__") and args:
                for attr in self._strings(node):
                    found.add(f"{name.rpartition('.')[0]}.{attr}")
            elif name in self.scopes.defined:
                found |= self._returned(name)
                found.add(f"{name}()")
            elif name.count("()") == 0 or (name.endswith("()") and name.count("()") == 1):
                found.add(f"{name}()")
        return frozenset(found)

    def _returned(self, name: str) -> Names:
        if name not in self._returns:
            function = self.scopes.defined[name]
            own = self.scopes.own[function]
            self._returns[name] = [
                n.value
                for n in walk(function)
                if isinstance(n, ast.Return) and n.value and self.scopes.of[n] is own
            ]
        return _union(map(self.resolve, self._returns[name]))

    def _evaluated(self, node: ast.expr) -> Names:
        text = self.fold(node)
        if not isinstance(text, str):
            return _NONE
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, MemoryError):
            return _NONE
        return self.resolve(tree.body)

    def _strings(self, call: ast.expr) -> list[str]:
        if isinstance(call, ast.Name):
            bound = self._only_value(call)
            return self._strings(bound) if isinstance(bound, ast.Call) else []
        args = call.args if isinstance(call, ast.Call) else []
        return [v for v in map(self.fold, args) if isinstance(v, str)]

    def _subscript(self, node: ast.Subscript) -> Names:
        found: set[str] = set()
        for name in self.resolve(node.value):
            found |= self._item(name, node.slice)
        for item in self.items(node.value):
            found |= self.resolve(item)
        return frozenset(found)

    def _item(self, name: str, key: ast.expr) -> Names:
        """What the item of a module's dict, of sys.modules or of globals() stands for."""
        text = self.fold(key)
        if not isinstance(text, str):
            return _NONE
        if name == "sys.modules":
            return frozenset([text])
        if name == "<globals>":
            return self._name(self.scopes.module, text)
        if name.endswith(".__dict__"):
            return frozenset([f"{name.removesuffix('.__dict__')}.{text}"])
        return frozenset([f"builtins.{text}"]) if name == "builtins" else _NONE

    def items(self, node: ast.expr, depth: int = 0) -> list[ast.expr]:
        """The expressions of a container's items, through names and list()."""
        if depth > 8:
            return []
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return list(node.elts)
        if isinstance(node, ast.Dict):
            return list(node.values)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
            return [node.elt]
        if isinstance(node, ast.Call):
            if self.resolve(node.func) & _CONTAINERS:
                return [i for a in node.args for i in self.items(a, depth + 1) or [a]]
            return []
        bounds: list[Bound] = []
        if isinstance(node, ast.Name):
            found = self.scopes.of.get(node, self.scopes.module).find(node.id)
            bounds = found.names.get(node.id, []) if found else []
        elif isinstance(node, ast.Attribute) and not self.resolve(node.value):
            bounds = self.scopes.attributes.get(node.attr, [])
        values = [b.value for b in bounds if b.value is not None and not b.is_item]
        return [item for value in values[:16] for item in self.items(value, depth + 1)]

    # Constant values

    def fold(self, node: ast.AST | None) -> Any:
        """The value of a constant expression, else None."""
        return None if node is None else self._folder.value(node)

    def fold_all(self, node: ast.AST) -> list[Any]:
        """The values of a name that is bound in several ways, of others the one value."""
        if isinstance(node, ast.Name):
            found = self.scopes.of.get(node, self.scopes.module).find(node.id)
            values = []
            for bound in found.names.get(node.id, []) if found else []:
                if bound.value is not None:
                    options = self.items(bound.value) if bound.is_item else [bound.value]
                    values += [self.fold(option) for option in options]
            return [v for v in values if v is not None]
        value = self.fold(node)
        return [] if value is None else [value]

    def _only_value(self, node: ast.expr) -> ast.expr | None:
        if isinstance(node, ast.Name):
            found = self.scopes.of.get(node, self.scopes.module).find(node.id)
            bounds = found.names.get(node.id, []) if found else []
        elif isinstance(node, ast.Attribute):
            bounds = self.scopes.attributes.get(node.attr, [])
        else:
            bounds = []
        # A parameter has its default, or none, and what calls give for it.
        given = [b for b in bounds if b.value is not None or not any(a.is_argument for a in bounds)]
        return given[0].value if len(given) == 1 and not given[0].is_item else None

    # Classes and functions of the file

    def _class(self, dotted: str) -> ast.ClassDef | None:
        node = self.scopes.defined.get(dotted)
        return node if isinstance(node, ast.ClassDef) else None

    def bases(self, node: ast.ClassDef) -> Iterator[ast.ClassDef]:
        """The class and those of its bases that the file defines."""
        seen, todo = {node}, [node]
        while todo:
            current = todo.pop(0)
            yield current
            for base in current.bases:
                for name in self.resolve(base):
                    found = self._class(name)
                    if found is not None and found not in seen:
                        seen.add(found)
                        todo.append(found)

    def outer_bases(self, node: ast.ClassDef) -> Names:
        """Dotted names of the bases that the file does not define."""
        names = _union(self.resolve(b) for c in self.bases(node) for b in c.bases)
        return frozenset(n for n in names if not n.startswith(FILE))

    def method(self, node: ast.ClassDef, name: str) -> Function | None:
        for cls in self.bases(node):
            for item in cls.body:
                if isinstance(item, Function) and item.name == name:
                    return item
        return None

    def function(self, node: ast.AST) -> ast.AST:
        """The function or the module in which a node stands."""
        scope: Scope | None = self.scopes.of[node]
        while scope is not None and scope.is_class:
            scope = scope.parent
        return scope.node if scope else self.tree

    def is_reached(self, node: ast.AST) -> bool:
        """Whether a call of forward may run the node."""
        scope: Scope | None = self.scopes.of[node]
        while scope is not None:
            if scope.node in self.reached:
                return True
            scope = scope.parent
        return False

    def is_device_code(self, function: Function) -> bool:
        """Whether a decorator makes it a kernel of Triton, CuTe or the like."""
        for decorator in function.decorator_list:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            if any(n.startswith(_JIT_ROOTS) for n in self.resolve(target)):
                return True
        return False

    def _reach(self) -> list[Function]:
        if self.model is None:
            return []
        starts = ("forward", "__call__", "_call_impl", "__getattribute__")
        todo = [m for s in starts if (m := self.method(self.model, s)) is not None]
        reached: list[Function] = []
        while todo:
            function = todo.pop()
            if function in reached or self.is_device_code(function):
                continue
            reached.append(function)
            for node in walk(function):
                if isinstance(node, ast.Call):
                    for name in self.resolve(node.func):
                        todo += self._callees(name)
        return reached

    def _callees(self, name: str) -> list[Function]:
        """What a call of the dotted name runs of this file."""
        node = self.scopes.defined.get(name)
        if isinstance(node, Function):
            return [node]
        owner, _, last = name.rpartition(".")
        if name.endswith("()"):  # an instance is called
            owner, last = name.removesuffix("()"), "forward"
        elif last == "apply":  # of a torch.autograd.Function
            last = "forward"
        cls = self._class(owner.removesuffix("()"))
        if cls is None:
            return []
        options = [last, "__call__"] if name.endswith("()") else [last]
        return [m for option in options if (m := self.method(cls, option)) is not None]


def _union(parts: Iterator[Names]) -> Names:
    found: set[str] = set()
    for part in parts:
        found |= part
    return frozenset(found)
