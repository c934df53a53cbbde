"""Rules about torch doing the work of a submission that declares kernels of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernelbench_dist.harness.static._code import Code
from kernelbench_dist.harness.static._nodes import Found, at, walk
from kernelbench_dist.harness.static._words import words

_HEAVY = words(
    """
    matmul mm bmm addmm addmv addbmm baddbmm mv dot inner vdot addr ger einsum tensordot
    chain_matmul linear bilinear conv1d conv2d conv3d convolution conv_transpose1d
    conv_transpose2d conv_transpose3d scaled_dot_product_attention multi_head_attention_forward
    multi_dot _scaled_mm _int_mm _grouped_mm lstm gru rnn_tanh rnn_relu cdist addmm_ baddbmm_
    addmv_ addbmm_ __matmul__ __rmatmul__ _addmm_activation kron
    """
)
_HEAVY_METHODS = _HEAVY - {"linear", "bilinear", "convolution"}
_LIGHT = words(
    """
    cat concat concatenate hstack vstack dstack column_stack add sub mul div relu gelu silu
    sigmoid tanh exp exp2 log log2 sqrt rsqrt softmax log_softmax sum mean amax amin max min
    argmax argmin cumsum cumprod layer_norm group_norm batch_norm rms_norm instance_norm dropout
    embedding gather scatter scatter_add index_select index_add where clamp sort topk norm var
    std pow abs neg maximum minimum prod logsumexp leaky_relu elu selu mish hardtanh hardswish
    softplus cross_entropy mse_loss nll_loss interpolate max_pool2d avg_pool2d
    adaptive_avg_pool2d cosine_similarity normalize addcmul addcdiv lerp outer
    """
)
_HEAVY_MODULES = words(
    """
    Linear LazyLinear Bilinear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d
    ConvTranspose3d LSTM GRU RNN LSTMCell GRUCell RNNCell MultiheadAttention Transformer
    TransformerEncoder TransformerEncoderLayer TransformerDecoder TransformerDecoderLayer
    """
)
_CONTAINERS = frozenset(["ModuleList", "ModuleDict", "ParameterList", "ParameterDict", "Parameter"])
# What these return is the submission's own code, whatever its functions are called.
_OWN = (
    "torch.utils.cpp_extension.",
    "torch.cuda._compile_kernel",
    "torch.classes.",
    "torch.ops.",
    "torch.cuda.",
    "torch.distributed.",
    "torch.autograd.",
)


def torch_work(code: Code) -> Iterator[Found]:
    """Products, convolutions and attention by torch in forward; the rest is a warning."""
    if code.kind == "torch":
        return
    if code.model is not None and code.forward is None:
        for name in sorted(code.outer_bases(code.model)):
            if _is_heavy_class(name):
                yield at(code.model, "torch-in-forward", f"inherits forward from {name}")
    for function in code.reached:
        for node in walk(function):
            if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.MatMult):
                yield at(node, "torch-in-forward", f"multiplies by torch's @ (kind {code.kind})")
            elif isinstance(node, ast.Call):
                yield from _work(code, node)


def _work(code: Code, call: ast.Call) -> Iterator[Found]:
    heavy, light = work_of(code, call)
    if heavy:
        yield at(call, "torch-in-forward", f"calls {heavy} (kind {code.kind})")
    elif light:
        yield at(call, "torch-in-forward", f"calls {light} (kind {code.kind})", "warning")


def work_of(code: Code, call: ast.Call) -> tuple[str | None, str | None]:
    """The heavy and the light operator of torch that a call may be."""
    names = code.resolve(call.func)
    light: str | None = None
    for name in sorted(names):
        weight = _weight(name)
        if weight == "heavy":
            return name, None
        if weight == "light":
            light = name
    if "builtins.super().forward" in names and code.model is not None:
        for base in code.outer_bases(code.model):
            if _is_heavy_class(base):
                return f"{base}.forward", None
    if "torch.nn.Sequential()" in names:
        for module in code.items(call.func):
            if any(_is_heavy_class(n.removesuffix("()")) for n in code.resolve(module)):
                return "torch.nn.Sequential()", None
    if not names and isinstance(call.func, ast.Attribute):
        attr = call.func.attr
        if attr in _HEAVY_METHODS:
            return f".{attr}()", None
        if attr in _LIGHT:
            light = f".{attr}()"
    return None, light


def _weight(name: str) -> str | None:
    parts = name.split(".")
    if parts[0] not in ("torch", "numpy", "scipy", "cupy", "torchvision"):
        return None
    if parts[:3] in (["torch", "ops", "aten"], ["torch", "ops", "prims"]):
        operator = parts[3] if len(parts) > 3 else ""
        return "heavy" if operator in _HEAVY else "light"
    if name.startswith(_OWN):
        return None
    last = parts[-1]
    if parts[:2] == ["torch", "linalg"]:
        return "heavy"
    if last in _HEAVY:
        return "heavy"
    if parts[:2] == ["torch", "nn"]:
        cls = name.removesuffix(".forward").removesuffix(".__call__")
        if (_is_heavy_class(cls.removesuffix("()")) and cls != name) or name.endswith("()"):
            return _module_weight(cls.removesuffix("()"))
    return "light" if last in _LIGHT or name == "torch.compile" else None


def _module_weight(name: str) -> str | None:
    if _is_heavy_class(name):
        return "heavy"
    last = name.rpartition(".")[2]
    is_module = last[:1].isupper() and last not in _CONTAINERS
    return "light" if is_module else None


def _is_heavy_class(name: str) -> bool:
    return name.startswith("torch.nn.") and name.rpartition(".")[2] in _HEAVY_MODULES


def fallbacks(code: Code) -> Iterator[Found]:
    """An exception of the kernel that is caught and answered with another computation."""
    if code.kind == "torch":
        return
    for function in code.reached:
        for node in walk(function):
            if isinstance(node, ast.Try):
                for handler in node.handlers:
                    answer = _answer(code, handler)
                    if answer is not None:
                        yield at(handler, "falls-back", f"catches an exception and {answer}")
                if node.finalbody and any(
                    isinstance(n, ast.Return) for s in node.finalbody for n in ast.walk(s)
                ):
                    yield at(node, "falls-back", "returns in a finally clause")
            elif isinstance(node, ast.Call) and "contextlib.suppress" in code.resolve(node.func):
                yield at(node, "falls-back", "suppresses exceptions")


def _answer(code: Code, handler: ast.ExceptHandler) -> str | None:
    for node in walk(handler):
        if isinstance(node, ast.Return) and node.value is not None:
            return "returns another result"
        if isinstance(node, ast.Call):
            heavy, light = work_of(code, node)
            if heavy or light:
                return f"calls {heavy or light}"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return "multiplies by torch's @"
    is_raised = any(isinstance(n, ast.Raise) for n in walk(handler))
    return None if is_raised else "goes on"


def precision(code: Code) -> Iterator[Found]:
    """Conversions to narrow types in forward: a warning, since the inputs may be narrow too."""
    narrow = ("float16", "bfloat16", "half", "float8")
    for call in code.calls:
        if not code.is_reached(call):
            continue
        func = call.func
        args = [*call.args, *(k.value for k in call.keywords)]
        what: str | None = None
        if isinstance(func, ast.Attribute) and func.attr in ("half", "bfloat16"):
            what = f".{func.attr}()"
        elif isinstance(func, ast.Attribute) and func.attr in ("to", "type", "astype", "view"):
            for arg in args:
                for name in code.resolve(arg):
                    if name.startswith("torch.") and name[6:].startswith(narrow):
                        what = f".{func.attr}({name})"
        for name in code.resolve(func):
            if name.startswith(("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast")):
                what = name
        if what is not None:
            yield at(call, "lowers-precision", f"converts with {what}", "warning")
    for call in code.calls:
        for keyword in call.keywords:
            is_dot = any(n.startswith("triton.language.dot") for n in code.resolve(call.func))
            value = code.fold(keyword.value)
            narrow_dot = (keyword.arg == "allow_tf32" and value is True) or (
                keyword.arg == "input_precision" and value == "tf32"
            )
            if is_dot and narrow_dot:
                yield at(call, "lowers-precision", f"sets {keyword.arg} of tl.dot", "warning")


def reference(code: Code) -> Iterator[Found]:
    """Names of the reference that come in other ways than by an import."""
    for node in code.nodes:
        if isinstance(node, ast.ClassDef) and node.name == "ModelNew":
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id == "Model" and not code.resolve(base):
                    yield at(node, "uses-reference", "derives from the reference's Model")
