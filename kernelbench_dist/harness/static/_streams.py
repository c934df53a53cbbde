"""The rule about side streams, on which work may go on after forward has returned."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernelbench_dist.harness.static._code import Code, Function
from kernelbench_dist.harness.static._nodes import Found, at, walk
from kernelbench_dist.harness.static._words import words

_STREAMS = words(
    """
    torch.cuda.Stream torch.cuda.ExternalStream torch.Stream torch.cuda.stream
    torch.cuda.StreamContext torch.cuda.set_stream torch.cuda.streams.Stream
    torch.cuda.streams.ExternalStream torch.cuda.graphs.graph_pool_handle cupy.cuda.Stream
    cupy.cuda.ExternalStream
    """
)
_SIDE = frozenset(f"{name}()" for name in _STREAMS if name[-6:] == "Stream")
_CURRENT = frozenset(["torch.cuda.current_stream()", "torch.cuda.default_stream()"])


def streams(code: Code) -> Iterator[Found]:
    """A side stream is an error unless the code around it makes the current stream wait."""
    for call in code.calls:
        used = sorted(code.resolve(call.func) & _STREAMS)
        if not used:
            continue
        if used[0].endswith((".stream", ".StreamContext", ".set_stream")) and _is_current(
            code, call
        ):
            continue
        function = code.function(call)
        places: list[ast.AST] = [function]
        # What is made in __init__ or at the top is joined where it is used.
        if not (isinstance(function, Function) and function in code.reached):
            places = [code.tree]
        if any(_is_join(code, node) for place in places for node in walk(place)):
            yield at(call, "unjoined-stream", f"works with {used[0]}, and waits for it", "warning")
        else:
            yield at(call, "unjoined-stream", f"works with {used[0]}, and nothing waits for it")


def _is_current(code: Code, call: ast.Call) -> bool:
    names = code.resolve(call.args[0]) if call.args else frozenset()
    return bool(names) and names <= _CURRENT


def _is_join(code: Code, node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    attr, owner = node.func.attr, code.resolve(node.func.value)
    if attr == "synchronize":
        return True
    if attr not in ("wait_stream", "wait_event"):
        return False
    # side.wait_stream(current) makes the side stream wait: that is no join.
    return not owner or not owner <= _SIDE
