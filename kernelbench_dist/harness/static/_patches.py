"""Rules about changing what does not belong to the submission: torch, timers, modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernelbench_dist.harness.static._code import Code
from kernelbench_dist.harness.static._nodes import Found, at
from kernelbench_dist.harness.static._words import words

_PROTECTED = words(
    """
    torch time builtins gc sys numpy kernelbench_dist random os inspect math threading socket
    json pickle struct statistics functools importlib ctypes subprocess types weakref array
    datetime timeit hashlib secrets mmap io
    """
)
_TIMER = words(
    """
    Event elapsed_time record query synchronize perf_counter perf_counter_ns time time_ns
    monotonic monotonic_ns process_time sleep timeit Timer current_stream default_stream
    """
)
_COMPARISON = words(
    """
    allclose isclose equal eq ne testing assert_close assert_allclose isnan isfinite isinf
    array_equal __eq__ __ne__
    """
)
_RANDOM = words(
    """
    randn rand randint randperm randn_like rand_like normal normal_ uniform_ manual_seed
    manual_seed_all seed set_rng_state get_rng_state Generator initial_seed random
    """
)
_SETTERS = frozenset(["builtins.setattr", "builtins.delattr"])
_DUNDERS = ("__setattr__", "__delattr__")
_WRITES = ("update", "__setitem__", "setdefault", "pop", "clear", "__delitem__", "popitem")
# Settings that are a submission's own business.
_FREE = ("torch.backends.", "torch._dynamo.config.", "torch._inductor.config.")


def patches(code: Code) -> Iterator[Found]:
    """Assignments to attributes of modules and of what they define, in all their spellings."""
    for node in code.nodes:
        for target in _stores(node):
            if isinstance(target, ast.Attribute):
                for name in code.resolve(target.value):
                    value = getattr(node, "value", None)
                    yield from _patched(code, node, name, target.attr, value)
                if target.attr in ("__code__", "__globals__", "__class__", "__bases__"):
                    yield at(node, "hides-code", f"sets {target.attr}")
            elif isinstance(target, ast.Subscript):
                for name in code.resolve(target.value):
                    for key in _names(code, target.slice):
                        yield from _item_set(code, node, name, key)
    for call in code.calls:
        yield from _patching_call(code, call)


def _stores(node: ast.AST) -> Iterator[ast.expr]:
    """The targets of a statement, out of their tuples."""
    todo: list[ast.expr] = []
    if isinstance(node, (ast.Assign, ast.Delete)):
        todo += node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For, ast.AsyncFor, ast.comprehension)):
        todo.append(node.target)
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        todo += [i.optional_vars for i in node.items if i.optional_vars is not None]
    while todo:
        target = todo.pop()
        if isinstance(target, (ast.Tuple, ast.List)):
            todo += target.elts
        elif isinstance(target, ast.Starred):
            todo.append(target.value)
        else:
            yield target


def _is_protected(name: str) -> bool:
    return "()" not in name and name.partition(".")[0] in _PROTECTED


def _patched(
    code: Code, node: ast.AST, owner: str, attr: object, value: ast.AST | None
) -> Iterator[Found]:
    """The finding for `owner.attr = value`; attr is no str where it is not constant."""
    if not _is_protected(owner):
        return
    shown = attr if isinstance(attr, str) else "?"
    whole = f"{owner}.{shown}"
    if whole.startswith(_FREE):
        if _is_precision(whole) and not _keeps_precision(code, value):
            yield at(node, "lowers-precision", f"sets {whole}")
        return
    yield at(node, _rule(whole), f"changes {whole}")


def _rule(whole: str) -> str:
    parts = whole.split(".")
    last = set(parts[1:][-2:])
    if parts[0] == "time" or last & _TIMER:
        return "patches-timer"
    if last & _COMPARISON:
        return "patches-comparison"
    if parts[0] == "random" or last & _RANDOM:
        return "patches-random"
    return "patches-torch" if parts[0] == "torch" else "patches-library"


def _is_precision(whole: str) -> bool:
    last = whole.rpartition(".")[2]
    return last.startswith(("allow_", "fp32_precision")) or last == "?"


def _keeps_precision(code: Code, value: ast.AST | None) -> bool:
    if value is None or (isinstance(value, ast.Constant) and value.value is False):
        return True
    return code.fold(value) in ("ieee", "highest")


def _item_set(code: Code, node: ast.AST, owner: str, key: object) -> Iterator[Found]:
    """The finding for `owner[key] = ...` of a module's dict or of sys.modules."""
    if owner == "sys.modules":
        yield at(node, "patches-library", f"changes sys.modules[{key!r}]")
    elif owner == "builtins":  # __builtins__ is a dict in some modules
        yield from _patched(code, node, owner, key, None)
    elif owner.endswith(".__dict__"):
        value = getattr(node, "value", None)
        yield from _patched(code, node, owner.removesuffix(".__dict__"), key, value)
    elif owner == "<globals>" and not isinstance(key, str):
        yield at(node, "hides-code", "sets a global whose name is not constant", "warning")


def _patching_call(code: Code, call: ast.Call) -> Iterator[Found]:
    args = call.args
    value = args[2] if len(args) > 2 else None
    for name in code.resolve(call.func):
        owner, _, last = name.rpartition(".")
        if (name in _SETTERS or (last in _DUNDERS and not _is_protected(owner))) and args:
            for target in code.resolve(args[0]):
                for attr in _names(code, args[1] if len(args) > 1 else None):
                    yield from _patched(code, call, target, attr, value)
        elif last in _DUNDERS:
            # torch.cuda.__setattr__("Event", x), or type.__setattr__(torch.cuda.Event, "x", y)
            targets = code.resolve(args[0]) if len(args) > 2 or owner == "builtins.object" else []
            if owner.startswith("builtins."):
                for target in code.resolve(args[0]) if args else targets:
                    yield from _patched(code, call, target, code.fold(args[1]), value)
            elif args:
                yield from _patched(code, call, owner, code.fold(args[0]), None)
        elif last in _WRITES and (owner.endswith(".__dict__") or owner == "sys.modules"):
            for key in _written_keys(code, call):
                yield from _item_set(code, call, owner, key)
        elif last == "patch" and "mock" in name:
            yield from _mocked(code, call)
        elif last in ("setattr", "delattr", "setitem", "object", "curse", "dict", "multiple"):
            if name.startswith(("builtins.", "torch.", "numpy.")) or not args:
                continue
            yield from _mocked(code, call)
        elif name in (
            "torch.library.Library",
            "torch.library.impl",
            "torch.library.register_kernel",
        ):
            text = code.fold(args[0]) if args else None
            if not isinstance(text, str) or text.partition("::")[0] in ("aten", "prims"):
                what = f"overrides operators of {text or 'a library whose name is not constant'}"
                yield at(call, "patches-torch", what)
        elif name in (
            "torch.set_default_dtype",
            "torch.set_default_tensor_type",
            "torch.set_float32_matmul_precision",
        ):
            if not args or code.fold(args[0]) != "highest":
                yield at(call, "lowers-precision", f"calls {name}")
        elif name == "torch.overrides.enable_reentrant_dispatch":
            yield at(call, "tensor-subclass", f"calls {name}")
    is_setattr = isinstance(call.func, ast.Attribute) and call.func.attr in ("setattr", "delattr")
    if is_setattr and not code.resolve(call.func):  # monkeypatch.setattr, whatever monkeypatch is
        yield from _mocked(code, call)


def _written_keys(code: Code, call: ast.Call) -> list[object]:
    """The keys of d.update(a=1), d.update({"a": 1}) and d.setdefault("a", 1); None for unknown."""
    keys: list[object] = [keyword.arg for keyword in call.keywords]
    for arg in call.args[:1]:
        keys += [code.fold(k) for k in arg.keys] if isinstance(arg, ast.Dict) else [code.fold(arg)]
    return keys or [None]


def _names(code: Code, node: ast.expr | None) -> list[object]:
    return (code.fold_all(node) if node is not None else []) or [None]


def _mocked(code: Code, call: ast.Call) -> Iterator[Found]:
    """patch("torch.cuda.synchronize"), patch.object(torch.cuda, "synchronize") and the like."""
    if not call.args:
        return
    path = code.fold(call.args[0])
    if isinstance(path, str):
        owner, _, last = path.rpartition(".")
        yield from _patched(code, call, owner, last, None)
    for target in code.resolve(call.args[0]):
        attr = code.fold(call.args[1]) if len(call.args) > 1 else None
        yield from _patched(code, call, target.removesuffix(".__dict__"), attr, None)


def subclasses(code: Code) -> Iterator[Found]:
    """Tensors that are not what they seem, and modes that come between torch and its callers."""
    for node in code.nodes:
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                for name in code.resolve(base):
                    last = name.rpartition(".")[2]
                    if name == "torch.nn.Parameter" or (
                        name.startswith("torch.") and last.endswith(("Tensor", "Mode"))
                    ):
                        yield at(node, "tensor-subclass", f"class {node.name} derives from {name}")
        named = (
            node.name
            if isinstance(node, ast.FunctionDef)
            else node.attr
            if isinstance(node, ast.Attribute)
            else node.id
            if isinstance(node, ast.Name)
            else ""
        )
        if named in ("__torch_function__", "__torch_dispatch__"):
            yield at(node, "tensor-subclass", f"defines or uses {named}")
    for call in code.calls:
        for name in code.resolve(call.func):
            last = name.rpartition(".")[2]
            if last in ("_make_wrapper_subclass", "_make_subclass", "as_subclass"):
                yield at(call, "tensor-subclass", f"calls {last}")
        is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "as_subclass"
        if is_method and not code.resolve(call.func):
            yield at(call, "tensor-subclass", "calls as_subclass")
