"""Rules about the C++, CUDA and PTX text that a submission compiles."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from kernelbench_dist.harness.static._c_tokens import Token, tokens
from kernelbench_dist.harness.static._code import Code
from kernelbench_dist.harness.static._kind import BUILDERS, CUDA_COMPILERS
from kernelbench_dist.harness.static._nodes import Found, at
from kernelbench_dist.harness.static._words import words

_HEAVY = words(
    """
    matmul mm bmm addmm addmv addbmm baddbmm mv dot einsum tensordot linear bilinear conv1d
    conv2d conv3d convolution conv_transpose2d scaled_dot_product_attention matmul_out mm_out
    bmm_out addmm_out linear_out inner chain_matmul addmm_ _addmm_activation cudnn_convolution
    """
)
_HEAVY_METHODS = words(
    """
    matmul mm bmm addmm addmv baddbmm mv addmm_
    """
)
_LIGHT = words(
    """
    cat concat stack_out sum mean softmax log_softmax relu gelu sigmoid tanh exp layer_norm add
    mul max min amax index_select gather cumsum dropout group_norm batch_norm
    """
)
_L2 = words(
    """
    cudaAccessPolicyWindow cudaStreamSetAttribute cudaCtxResetPersistingL2Cache
    cudaLimitPersistingL2CacheSize accessPolicyWindow cuStreamSetAttribute
    cudaLaunchAttributeAccessPolicyWindow cudaStreamAttributeAccessPolicyWindow
    CU_LIMIT_PERSISTING_L2_CACHE_SIZE cuCtxResetPersistingL2Cache
    CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW cudaAccessPropertyPersisting
    cudaKernelNodeSetAttribute CUaccessPolicyWindow
    """
)
_STREAMS = words(
    """
    cudaStreamCreate cudaStreamCreateWithFlags cudaStreamCreateWithPriority cuStreamCreate
    cuStreamCreateWithPriority getStreamFromPool cudaStreamPerThread
    """
)
_JOINS = words(
    """
    cudaStreamSynchronize cudaStreamWaitEvent cudaDeviceSynchronize cuStreamSynchronize
    cuStreamWaitEvent cuCtxSynchronize cudaEventSynchronize synchronize
    """
)
_CALLS = {
    name: rule
    for rule, names in {
        "ends-process": (
            "_exit _Exit exit quick_exit abort kill raise killpg tgkill signal sigaction"
            " atexit alarm"
        ),
        "starts-process": (
            "system popen fork vfork execv execve execvp execl posix_spawn daemon setsid"
            " clone unshare"
        ),
        "uses-network": "socket connect getaddrinfo",
        "reads-memory": "ptrace process_vm_readv process_vm_writev mprotect shm_open mmap",
        "hides-code": (
            "dlopen dlsym dlmopen dl_iterate_phdr PyRun_SimpleString PyRun_String"
            " PyEval_EvalCode Py_CompileString PyImport_ImportModule PyObject_SetAttrString"
            " PyImport_AddModule"
        ),
        "reads-judge": "PyEval_GetFrame PyFrame_GetBack PyThreadState_GetFrame PyGC_VisitObjects",
        "forges-output": "dup2 write fwrite puts",
        "guesses-seeds": "manual_seed manual_seed_all",
        "works-on-threads": "pthread_create thrd_create",
    }.items()
    for name in words(names)
}
_FILES = words(
    """
    fopen ifstream fstream freopen opendir open openat
    """
)
_PTX = (("createpolicy", "pins-l2"), ("evict_last", "pins-l2"))
_STATE = words(
    """
    Tensor unordered_map map vector int long size_t unsigned bool uint64_t int64_t
    """
)

Mark = Callable[[Token, str, str, str | None], Found]


def sources(code: Code) -> Iterator[Found]:
    """All rules, over each text that is compiled."""
    done: set[ast.AST] = set()
    for call in code.calls:
        names = code.resolve(call.func)
        if not names & {*BUILDERS, *CUDA_COMPILERS}:
            continue
        given = list(call.args)
        given += [k.value for k in call.keywords if k.arg in _SOURCE_ARGUMENTS]
        is_load = "torch.utils.cpp_extension.load" in names
        if is_load:
            yield at(call, "hidden-source", "builds from files")
            continue
        for node in given:
            for text in _texts(code, node):
                if text is None:
                    yield at(node, "hidden-source", "compiles text that is not constant")
                elif text not in done:
                    done.add(text)
                    # The first place of each name says enough.
                    first: dict[tuple[str, str], Found] = {}
                    for found in _text_rules(text):
                        first.setdefault((found.rule, found.what), found)
                    yield from first.values()


_SOURCE_ARGUMENTS = frozenset(
    ["cpp_sources", "cuda_sources", "code", "source", "kernel_source", "src", "operation"]
)


def _texts(code: Code, node: ast.expr, depth: int = 0) -> Iterator[ast.Constant | None]:
    """The constants of which a text is made; None where some of it is something else."""
    if depth > 60:
        yield None
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, (str, bytes)):
            yield node
    elif isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple, ast.BinOp)):
        parts = (
            node.values
            if isinstance(node, ast.JoinedStr)
            else [node.left, node.right]
            if isinstance(node, ast.BinOp)
            else node.elts
        )
        for part in parts:
            yield from _texts(code, part, depth + 1)
    elif isinstance(node, ast.FormattedValue):
        # A number or a name put into the text. What it is bound to may be text itself.
        if isinstance(node.value, (ast.Name, ast.Attribute)):
            yield from (t for t in _texts(code, node.value, depth + 1) if t is not None)
    elif isinstance(node, (ast.Name, ast.Attribute)):
        bounds = _bounds(code, node)
        if not bounds:
            yield None
        for value in bounds:
            yield from _texts(code, value, depth + 1)
    elif isinstance(node, ast.IfExp):
        yield from _texts(code, node.body, depth + 1)
        yield from _texts(code, node.orelse, depth + 1)
    elif isinstance(node, ast.Call):
        yield from _call_texts(code, node, depth)
    elif isinstance(node, ast.Subscript):
        yield from _texts(code, node.value, depth + 1)
    elif isinstance(node, ast.Dict):
        for value in node.values:
            yield from _texts(code, value, depth + 1)
    else:
        yield None


def _call_texts(code: Code, node: ast.Call, depth: int) -> Iterator[ast.Constant | None]:
    """Of text.replace(a, b) and the like, and of functions of the file that return text."""
    functions = [code.scopes.defined.get(n) for n in code.resolve(node.func)]
    returns = [
        n.value
        for f in functions
        if isinstance(f, ast.FunctionDef)
        for n in ast.walk(f)
        if isinstance(n, ast.Return) and n.value is not None
    ]
    if returns:
        parts: list[ast.expr] = returns
    elif isinstance(node.func, ast.Attribute) and not functions[:0]:
        # The arguments too: text.replace("BODY", body).
        parts = [node.func.value, *node.args, *(k.value for k in node.keywords)]
    else:
        parts = list(node.args)
    texts = [t for part in parts for t in _texts(code, part, depth + 1)]
    yield from (t for t in texts if t is not None)
    if not any(t is not None for t in texts):
        yield None


def _bounds(code: Code, node: ast.Name | ast.Attribute) -> list[ast.expr]:
    if isinstance(node, ast.Name):
        scope = code.scopes.of.get(node, code.scopes.module).find(node.id)
        bounds = scope.names.get(node.id, []) if scope else []
    else:
        bounds = code.scopes.attributes.get(node.attr, [])
    return [b.value for b in bounds if b.value is not None and not b.is_item]


def _text_rules(node: ast.Constant) -> Iterator[Found]:
    given = node.value
    value = given.decode("utf-8", "replace") if isinstance(given, bytes) else str(given)
    # Where "\n" in the text is written as such, lines cannot be told apart.
    spread = (node.end_lineno or node.lineno) - node.lineno == value.count("\n")

    def mark(token: Token, rule: str, what: str, severity: str | None) -> Found:
        line = node.lineno + (token.line if spread else 0)
        return Found(rule, line, 1, f"{what} in the source that it compiles", severity)

    found = tokens(value)
    for rule in (_library, _cache_policy, _streams, _system, _state):
        yield from rule(found, mark)


def _at(found: list[Token], i: int) -> str:
    return found[i].text if 0 <= i < len(found) else ""


def _library(found: list[Token], mark: Mark) -> Iterator[Found]:
    roots, is_open, defined = {"at", "torch", "aten"}, False, set()
    for i, token in enumerate(found):
        if token.text == "namespace" and _at(found, i - 1) == "using":
            is_open |= _at(found, i + 1) in ("at", "torch")
        elif token.text == "namespace" and _at(found, i + 2) == "=":
            if _at(found, i + 3) in roots or _at(found, i + 4) in roots:
                roots.add(_at(found, i + 1))
        elif token.text == "using" and _at(found, i + 1) in roots:
            is_open = True
        # A type and then a name: what is declared here is the submission's own.
        is_type = i > 0 and (found[i - 1].kind == "word" or found[i - 1].text in ("&", "*", ">"))
        if is_type and _at(found, i + 1) == "(" and _at(found, i - 1) != "return":
            defined.add(token.text)
    for i, token in enumerate(found):
        if token.kind != "word":
            continue
        name, before, after = token.text, _at(found, i - 1), _at(found, i + 1)
        if name.startswith(("cublas", "cudnn", "cusparse")):
            yield mark(token, "library-in-kernel", f"uses {name}", "warning")
        elif after == "(" and before == "::" and _owner(found, i) in roots:
            if name in _HEAVY:
                yield mark(token, "library-in-kernel", f"calls {_owner(found, i)}::{name}", None)
            elif name in _LIGHT:
                what = f"calls {_owner(found, i)}::{name}"
                yield mark(token, "library-in-kernel", what, "warning")
        elif after == "(" and before in (".", "->"):
            if name in _HEAVY_METHODS and name not in defined:
                yield mark(token, "library-in-kernel", f"calls {before}{name}()", None)
        elif after == "(" and is_open and name in _HEAVY and name not in defined:
            yield mark(token, "library-in-kernel", f"calls {name}", None)


def _owner(found: list[Token], i: int) -> str:
    """The first name of at::native::f, for the index of f."""
    while _at(found, i - 1) == "::" and i >= 2 and found[i - 2].kind == "word":
        i -= 2
    return _at(found, i)


def _cache_policy(found: list[Token], mark: Mark) -> Iterator[Found]:
    for token in found:
        if token.kind == "word" and token.text in _L2:
            yield mark(token, "pins-l2", f"uses {token.text}", None)
        elif token.kind == "assembly":
            for word, rule in _PTX:
                if word in token.text:
                    yield mark(token, rule, f"uses {word}", "warning")


def _streams(found: list[Token], mark: Mark) -> Iterator[Found]:
    words = {t.text for t in found if t.kind == "word"}
    if words & _JOINS:
        return
    for token in found:
        if token.kind == "word" and token.text in _STREAMS:
            what = f"uses {token.text}, and nothing waits for the stream"
            yield mark(token, "unjoined-stream", what, "warning")


def _system(found: list[Token], mark: Mark) -> Iterator[Found]:
    words = {t.text for t in found if t.kind == "word"}
    for i, token in enumerate(found):
        if token.kind == "string" and any(p in token.text for p in ("/proc/", "/dev/shm")):
            yield mark(token, "reads-files", f"names {token.text}", None)
        if token.kind != "word":
            continue
        name, before, after = token.text, _at(found, i - 1), _at(found, i + 1)
        is_member = before in (".", "->")
        is_declared = i > 0 and found[i - 1].kind == "word" and before not in ("return", "else")
        if name in _CALLS and after == "(" and not is_member and not is_declared:
            yield mark(token, _CALLS[name], f"calls {name}", None)
        elif name in _FILES and (after == "(" or name.endswith("fstream")) and not is_member:
            if _at(found, i - 1) != "<" and not is_declared:
                yield mark(token, "reads-files", f"uses {name}", "warning")
        elif name in ("thread", "jthread", "async") and _owner(found, i) == "std":
            joined = words & {"join", "wait", "get", "jthread"}
            yield mark(
                token, "works-on-threads", f"uses std::{name}", "warning" if joined else None
            )
        elif name in ("module_", "exec", "eval") and _owner(found, i) in ("py", "pybind11"):
            yield mark(token, "hides-code", f"uses {_owner(found, i)}::{name}", None)


def _state(found: list[Token], mark: Mark) -> Iterator[Found]:
    """static variables, which a later call finds as this one leaves them."""
    for i, token in enumerate(found):
        if token.text not in ("static", "thread_local") or token.kind != "word":
            continue
        declared: list[str] = []
        sign = ""
        for following in found[i + 1 : i + 40]:
            if following.text in ("=", ";", "{", "("):
                sign = following.text
                break
            declared.append(following.text)
        is_constant = {"const", "constexpr", "__constant__"} & set(declared)
        if sign not in ("", "(") and _STATE & set(declared) and not is_constant:
            yield mark(token, "keeps-state", f"keeps {declared[-1]}", None)
