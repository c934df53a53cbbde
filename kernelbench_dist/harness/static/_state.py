"""Rules about what lasts from one call of forward to the next."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernelbench_dist.harness.static._code import Code, Function
from kernelbench_dist.harness.static._flow import Flow, own_nodes, own_parameters, statements
from kernelbench_dist.harness.static._nodes import Found, at, root, walk
from kernelbench_dist.harness.static._scopes import FUNCTIONS, parameters
from kernelbench_dist.harness.static._words import words

_CONDITIONS = (ast.If, ast.Try, ast.IfExp, ast.While, ast.Match)
_LRU = frozenset(["functools.lru_cache", "functools.cache"])
_GROWS = frozenset(["append", "add", "extend", "insert", "appendleft"])
_CLOCKS = (
    "torch.cuda.is_current_stream_capturing",
    "time.",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "timeit.",
)
_SEEDING = words(
    """
    torch.manual_seed torch.seed torch.initial_seed torch.set_rng_state torch.get_rng_state
    torch.cuda.manual_seed torch.cuda.manual_seed_all torch.cuda.seed torch.cuda.seed_all
    torch.cuda.set_rng_state torch.cuda.get_rng_state torch.cuda.initial_seed random.seed
    random.setstate random.getstate numpy.random.seed numpy.random.set_state
    numpy.random.get_state torch.default_generator torch.Generator().manual_seed
    torch.Generator().set_state
    """
)


def caches(code: Code) -> Iterator[Found]:
    """Values computed from forward's arguments that a later call finds again.

    What depends on weights alone may be kept, and so may buffers: they hold no argument's values.
    """
    loads, refreshed = _loaded_states(code), _refreshed(code)
    for function in code.reached:
        flow = Flow(code, own_parameters(function))
        keys = Flow(code, own_parameters(function), metadata_counts=True)
        for statement in statements(function):
            for target, value in _stores(code, statement):
                state = state_of(code, function, target)
                if state is None or state in refreshed or not flow.depends(value):
                    continue
                if any(_is_graph(code, n) for n in _enclosing(code, statement)):
                    continue  # captured, and computed anew by each replay
                key = target.slice if isinstance(target, ast.Subscript) else None
                if _is_slice(key):
                    continue
                lines = loads.get(state, [])
                is_keyed = key is not None and keys.depends(key)
                is_guarded = any(isinstance(n, _CONDITIONS) for n in _enclosing(code, statement))
                is_early = any(f is function and line < statement.lineno for f, line in lines)
                if lines and (is_keyed or is_guarded or is_early):
                    what = f"keeps a result in {state} and reads it in a later call"
                    yield at(statement, "caches-results", what)
            flow.step(statement)
            keys.step(statement)


def _refreshed(code: Code) -> set[str]:
    """States into which forward copies its arguments: static inputs of a CUDA graph."""
    found: set[str] = set()
    for function in code.reached:
        flow = Flow(code, own_parameters(function))
        for statement in statements(function):
            call = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                state = state_of(code, function, call.func.value)
                if call.func.attr == "copy_" and state and any(map(flow.depends, call.args)):
                    found.add(state)
            flow.step(statement)
    return found


def _is_graph(code: Code, node: ast.AST) -> bool:
    return isinstance(node, ast.With) and any(
        "torch.cuda.graph()" in code.resolve(item.context_expr) for item in node.items
    )


def _enclosing(code: Code, node: ast.AST) -> Iterator[ast.AST]:
    """The nodes around a node, up to the function in which it stands."""
    current = code.scopes.parent.get(node)
    while current is not None and not isinstance(current, FUNCTIONS):
        yield current
        current = code.scopes.parent.get(current)


def _stores(code: Code, statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, (ast.Tuple, ast.List)):
                yield from ((item, statement.value) for item in target.elts)
            else:
                yield target, statement.value
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        yield statement.target, statement.value
    for call in own_nodes(statement):
        if not isinstance(call, ast.Call):
            continue
        func, args = call.func, call.args
        is_setattr = any(n.endswith((".setattr", ".__setattr__")) for n in code.resolve(func))
        if is_setattr and len(args) == 3:
            name = code.fold(args[1])
            attr = ast.Attribute(args[0], name if isinstance(name, str) else "?", ast.Store())
            yield attr, args[2]
        elif isinstance(func, ast.Attribute) and args:
            if func.attr in ("setdefault", "__setitem__") and len(args) == 2:
                yield ast.Subscript(func.value, args[0], ast.Store()), args[1]
            elif func.attr in _GROWS:
                yield func.value, args[-1]
            elif func.attr == "update":
                for keyword in call.keywords or []:
                    yield func.value, keyword.value
                if args and isinstance(args[0], ast.Dict):
                    for k, v in zip(args[0].keys, args[0].values, strict=True):
                        yield ast.Subscript(func.value, k or v, ast.Store()), v


def _is_slice(key: ast.expr | None) -> bool:
    parts = key.elts if isinstance(key, ast.Tuple) else [key]
    return any(
        isinstance(p, ast.Slice) or (isinstance(p, ast.Constant) and p.value is ...) for p in parts
    )


def state_of(code: Code, function: Function, node: ast.AST, depth: int = 0) -> str | None:
    """The name of what outlives a call: "self.cache", "CACHE"; None for locals."""
    while isinstance(node, (ast.Subscript, ast.Starred)):
        node = node.value
    if isinstance(node, ast.Attribute):
        inner = node
        while isinstance(inner.value, ast.Attribute):
            inner = inner.value
        if isinstance(inner.value, ast.Call):  # type(self).cache
            return f"self.{inner.attr}"
        start = root(inner)
        if not isinstance(start, ast.Name):
            return None
        if start.id in ("self", "cls"):
            return f"self.{inner.attr}"
        found = (code.scopes.of.get(start) or code.scopes.own[function]).find(start.id)
        is_local = found is not None and _is_inside(code, found.node, function)
        if is_local and start.id not in own_parameters(function):
            return None
        owner = start.id
        if owner != "self" and code.resolve(start) & {"<file>.ModelNew"}:
            owner = "self"
        return f"{owner}.{inner.attr}"
    if not isinstance(node, ast.Name):
        return None
    own = code.scopes.own[function]
    # A name made here: it is no Store in the tree, and so has no scope of its own.
    found = (code.scopes.of.get(node) or own).find(node.id)
    if found is None or found is code.scopes.module or not _is_inside(code, found.node, function):
        return node.id if found is not None else None
    defaults = dict(_defaults(function))
    if isinstance(defaults.get(node.id), (ast.Dict, ast.List, ast.Call)):
        return node.id
    for bound in found.names.get(node.id, []):
        if bound.is_argument and getattr(root(bound.value or node), "id", "") != "self":
            continue  # a local of the caller
        if depth < 4 and isinstance(bound.value, (ast.Attribute, ast.Name)) and not bound.is_item:
            inner_state = state_of(code, function, bound.value, depth + 1)
            if inner_state is not None:
                return inner_state
    return None


def _defaults(function: Function) -> list[tuple[str, ast.expr | None]]:
    return [(arg.arg, default) for arg, default in parameters(function.args)]


def _is_inside(code: Code, node: ast.AST, function: Function) -> bool:
    current: ast.AST | None = node
    while current is not None:
        if current is function:
            return True
        current = code.scopes.parent.get(current)
    return False


def _loaded_states(code: Code) -> dict[str, list[tuple[Function, int]]]:
    """Where reached functions read each state."""
    found: dict[str, list[tuple[Function, int]]] = {}
    for function in code.reached:
        for node in walk(function):
            state = None
            if isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Load):
                parent = code.scopes.parent.get(node)
                # self.cache[key] = y reads the dict, and not the result.
                if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store):
                    continue
                if isinstance(parent, ast.Attribute) and parent.attr in _GROWS:
                    continue
                state = state_of(code, function, node)
            elif isinstance(node, ast.Call) and "builtins.getattr" in code.resolve(node.func):
                attr = code.fold(node.args[1]) if len(node.args) > 1 else None
                start = root(node.args[0]) if node.args else None
                if isinstance(attr, str) and isinstance(start, ast.Name):
                    state = f"{start.id}.{attr}"
            if state is not None:
                found.setdefault(state, []).append((function, getattr(node, "lineno", 0)))
    return found


def memoized(code: Code) -> Iterator[Found]:
    """functools.cache on what forward calls with tensors."""
    for node in code.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and own_parameters(node):
            for decorator in node.decorator_list:
                target = decorator.func if isinstance(decorator, ast.Call) else decorator
                if not code.resolve(target) & _LRU:
                    continue
                name = "<file>" + code.scopes.own[node].qualname
                if node is code.forward or name in _called_with_values(code):
                    what = f"keeps results of {node.name} by its arguments"
                    yield at(decorator, "caches-results", what)
                else:
                    yield at(decorator, "keeps-state", f"keeps results of {node.name}")
        elif isinstance(node, ast.Call) and len(node.args) == 1:
            is_cache = code.resolve(node.func) & _LRU or (
                isinstance(node.func, ast.Call) and code.resolve(node.func.func) & _LRU
            )
            names = code.resolve(node.args[0]) if is_cache else frozenset()
            if any(code.scopes.defined.get(n) in (code.forward, *code.reached) for n in names):
                yield at(node, "caches-results", "keeps results of what forward calls")


def _called_with_values(code: Code) -> set[str]:
    found: set[str] = set()
    for function in code.reached:
        flow = Flow(code, own_parameters(function))
        for statement in statements(function):
            flow.step(statement)
        for node in walk(function):
            if isinstance(node, ast.Call) and any(map(flow.depends, node.args)):
                found |= code.resolve(node.func)
    return found


def counters(code: Code) -> Iterator[Found]:
    """A state that each call changes and that a condition asks for."""
    changed: dict[str, ast.AST] = {}
    for function in code.reached:
        for node in walk(function):
            target: ast.AST | None = None
            if isinstance(node, ast.AugAssign):
                target = node.target
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
                target = node.targets[0]
                if state_of(code, function, target) not in _states(code, function, node.value):
                    continue
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                target = node.func.value if node.func.attr in (*_GROWS, "__next__") else None
            elif isinstance(node, ast.Call) and node.args:
                target = node.args[0] if code.resolve(node.func) & {"builtins.next"} else None
            state = state_of(code, function, target) if target is not None else None
            if state is not None:
                changed.setdefault(state, node)
    if not changed:
        return
    for function in code.reached:
        derived = {
            t.id: states
            for s in statements(function)
            if isinstance(s, ast.Assign) and (states := _states(code, function, s.value))
            for t in s.targets
            if isinstance(t, ast.Name)
        }
        for node in walk(function):
            if not isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Match)):
                continue
            test = node.subject if isinstance(node, ast.Match) else node.test
            states = _states(code, function, test)
            for name in ast.walk(test):
                states |= derived.get(name.id, set()) if isinstance(name, ast.Name) else set()
            for state in sorted(states & set(changed)):
                yield at(node, "counts-calls", f"changes {state} in each call and decides by it")


def _states(code: Code, function: Function, node: ast.AST) -> set[str]:
    names = (n for n in ast.walk(node) if isinstance(n, (ast.Attribute, ast.Name)))
    return {s for n in names if (s := state_of(code, function, n)) is not None}


def clocks(code: Code) -> Iterator[Found]:
    """Reading a clock in forward: its result cannot depend on the time."""
    for call in code.calls:
        if code.is_reached(call):
            for name in code.resolve(call.func):
                if name.startswith(_CLOCKS) and name != "time.sleep":
                    yield at(call, "reads-clock", f"calls {name}")


def seeds(code: Code) -> Iterator[Found]:
    """Setting or reading the state of generators, from which inputs could be drawn again."""
    for call in code.calls:
        names = code.resolve(call.func)
        found = next((n for n in sorted(names) if n in _SEEDING), None)
        if found is None and isinstance(call.func, ast.Attribute) and not names:
            found = "manual_seed" if call.func.attr == "manual_seed" else None
        if found is None:
            if not any(n.startswith(("torch.random.", "torch.cuda.random.")) for n in names):
                continue
            found = sorted(names)[0]
        function = code.function(call)
        is_init = getattr(function, "name", "") in ("__init__", "reset_parameters")
        is_idle = isinstance(function, Function) and not code.is_reached(call)
        is_idle = is_idle and not any(function in _functions(code, c) for c in code.calls)
        severity = "warning" if is_init or is_idle else None
        yield at(call, "guesses-seeds", f"calls {found}", severity)


def _functions(code: Code, call: ast.Call) -> list[ast.AST]:
    """The functions of the file that a call may run."""
    found = (code.scopes.defined.get(name) for name in code.resolve(call.func))
    return [function for function in found if function is not None]
