"""Rules about what lies outside of the submission: the judge, its process, files, memory."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernelbench_dist.harness.static._code import Code
from kernelbench_dist.harness.static._nodes import Found, at
from kernelbench_dist.harness.static._words import words

# By dotted name; one that ends in "." stands for all below it.
_FORBIDDEN: dict[str, str] = {
    "gc.get_objects": "reads-judge",
    "gc.get_referrers": "reads-judge",
    "gc.get_referents": "reads-judge",
    "gc.callbacks": "reads-judge",
    "gc.garbage": "reads-judge",
    "inspect.stack": "reads-judge",
    "inspect.currentframe": "reads-judge",
    "inspect.trace": "reads-judge",
    "inspect.getouterframes": "reads-judge",
    "inspect.getinnerframes": "reads-judge",
    "sys._getframe": "reads-judge",
    "sys._current_frames": "reads-judge",
    "sys._current_exceptions": "reads-judge",
    "sys.settrace": "reads-judge",
    "sys.setprofile": "reads-judge",
    "sys.addaudithook": "reads-judge",
    "sys.monitoring.": "reads-judge",
    "sys.meta_path": "reads-judge",
    "threading.settrace": "reads-judge",
    "threading.setprofile": "reads-judge",
    "threading._active": "reads-judge",
    "threading.enumerate": "reads-judge",
    "traceback.walk_stack": "reads-judge",
    "traceback.extract_stack": "reads-judge",
    "tracemalloc.": "reads-judge",
    "weakref.getweakrefs": "reads-judge",
    "kernelbench_dist.__file__": "reads-judge",
    "os._exit": "ends-process",
    "os.abort": "ends-process",
    "sys.exit": "ends-process",
    "builtins.exit": "ends-process",
    "builtins.quit": "ends-process",
    "os.kill": "ends-process",
    "os.killpg": "ends-process",
    "os.getppid": "ends-process",
    "os.pidfd_open": "ends-process",
    "signal.": "ends-process",
    "atexit.": "ends-process",
    "sys.excepthook": "ends-process",
    "os.system": "starts-process",
    "os.popen": "starts-process",
    "os.fork": "starts-process",
    "os.forkpty": "starts-process",
    "os.posix_spawn": "starts-process",
    "os.posix_spawnp": "starts-process",
    "os.register_at_fork": "starts-process",
    "os.setsid": "starts-process",
    "subprocess.": "starts-process",
    "multiprocessing.": "starts-process",
    "torch.multiprocessing.": "starts-process",
    "pty.": "starts-process",
    "socket.": "uses-network",
    "socketserver.": "uses-network",
    "urllib.": "uses-network",
    "http.": "uses-network",
    "ftplib.": "uses-network",
    "requests.": "uses-network",
    "httpx.": "uses-network",
    "aiohttp.": "uses-network",
    "torch.hub.": "uses-network",
    "threading.Thread": "works-on-threads",
    "threading.Timer": "works-on-threads",
    "_thread.": "works-on-threads",
    "concurrent.futures.": "works-on-threads",
    "asyncio.": "works-on-threads",
    "joblib.": "works-on-threads",
    "torch.futures.": "works-on-threads",
    "torch.jit.fork": "works-on-threads",
    "torch.jit._fork": "works-on-threads",
    "sys.stdout": "forges-output",
    "sys.__stdout__": "forges-output",
    "os.write": "forges-output",
    "os.writev": "forges-output",
    "os.dup": "forges-output",
    "os.dup2": "forges-output",
    "os.fdopen": "forges-output",
    "os.sendfile": "forges-output",
    "os.pwrite": "forges-output",
    "marshal.": "hides-code",
    "pickle.load": "hides-code",
    "pickle.loads": "hides-code",
    "types.FunctionType": "hides-code",
    "types.CodeType": "hides-code",
    "runpy.": "hides-code",
    "imp.": "hides-code",
    "zipimport.": "hides-code",
    "code.": "hides-code",
    "importlib.util.spec_from_file_location": "hides-code",
    "importlib.machinery.": "hides-code",
    "importlib.reload": "hides-code",
    "mmap.": "reads-memory",
    "ctypes.pythonapi": "reads-memory",
    "ctypes.string_at": "reads-memory",
    "ctypes.wstring_at": "reads-memory",
    "ctypes.memmove": "reads-memory",
    "ctypes.memset": "reads-memory",
    "ctypes.cast": "reads-memory",
    "ctypes.POINTER": "reads-memory",
    "ctypes.py_object": "reads-memory",
    "numpy.ctypeslib.": "reads-memory",
    "multiprocessing.shared_memory.": "reads-memory",
}
_FRAME_ATTRIBUTES = words(
    """
    f_back f_locals f_globals f_builtins tb_frame gi_frame cr_frame ag_frame __globals__
    __closure__ cell_contents __subclasses__ __traceback__ tb_next
    """
)
_MEMORY_ATTRIBUTES = words(
    """
    from_address process_vm_readv process_vm_writev ptrace mprotect dlsym
    """
)
_JUDGE = ("harness", "cli", "__main__", "timing", "_compare", "testing")
_READERS = words(
    """
    builtins.open io.open os.open codecs.open os.listdir os.scandir os.walk os.readlink
    glob.glob glob.iglob numpy.load numpy.fromfile numpy.memmap numpy.genfromtxt numpy.loadtxt
    torch.load torch.from_file linecache.getline linecache.getlines inspect.getsource
    inspect.getsourcelines inspect.getsourcefile fileinput.input shutil.copy shutil.copyfile
    tokenize.open pkgutil.get_data importlib.resources.files os.pread os.read
    """
)
_PATH_METHODS = words(
    """
    read_text read_bytes open iterdir glob rglob readlink write_text write_bytes
    """
)
_BAD_PATHS = ("/proc", "/dev/shm", "/dev/fd", "harness", "kernelbench")
_LIBC = ("libc", "libpthread", "ld-linux", "libpython")


def judge(code: Code) -> Iterator[Found]:
    """Uses of functions and modules that have no place in a kernel."""
    for node in code.nodes:
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            if isinstance(node, ast.Attribute):
                yield from _attribute(code, node, node.attr)
            for name in sorted(code.resolve(node)):
                rule = _forbidden(name)
                # "f = os._exit" is one finding where it stands, and one where f is used.
                if rule is not None and not _is_part(code, node):
                    yield at(node, rule, f"uses {name}")
        elif isinstance(node, ast.Call):
            yield from _glued(code, node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from _imports(node)
        elif isinstance(node, ast.Raise):
            target = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            for name in code.resolve(target):
                if name in ("builtins.KeyboardInterrupt", "builtins.SystemExit"):
                    yield at(node, "ends-process", f"raises {name.removeprefix('builtins.')}")


def _is_part(code: Code, node: ast.AST) -> bool:
    """Whether an attribute of the node is taken, which says more than the node alone."""
    parent = code.scopes.parent.get(node)
    return isinstance(parent, ast.Attribute) and any(map(_forbidden, code.resolve(parent)))


def _forbidden(name: str) -> str | None:
    if name in _FORBIDDEN:
        return _FORBIDDEN[name]
    if name.startswith(("os.exec", "os.spawn")):
        return "starts-process"
    parts = name.split(".")
    for end in range(1, len(parts)):
        prefix = ".".join(parts[:end])
        rule = _FORBIDDEN.get(prefix + ".") or _FORBIDDEN.get(prefix)
        if rule is not None:
            return rule
    return None


def _attribute(code: Code, node: ast.AST, attr: str) -> Iterator[Found]:
    if attr in _FRAME_ATTRIBUTES:
        yield at(node, "reads-judge", f"reads {attr}")
    elif attr in _MEMORY_ATTRIBUTES:
        yield at(node, "reads-memory", f"uses {attr}")


def _glued(code: Code, call: ast.Call) -> Iterator[Found]:
    """Calls whose result is a forbidden name, such as getattr(os, "_ex" + "it")."""
    names = code.resolve(call.func)
    if "builtins.getattr" in names and len(call.args) > 1:
        for attr in code.fold_all(call.args[1]):
            if isinstance(attr, str):
                yield from _attribute(code, call, attr)
    for name in sorted(code.resolve(call)):
        if not name.endswith("()") and (rule := _forbidden(name)) is not None:
            parent = code.scopes.parent.get(call)
            if not (isinstance(parent, ast.Attribute) and _is_part(code, call)):
                yield at(call, rule, f"uses {name}")
        elif "." not in name or "()" not in name:
            yield from _judge_module(call, name)
    if names & {"builtins.__import__", "importlib.import_module"}:
        module = code.fold(call.args[0]) if call.args else None
        if isinstance(module, str):
            yield from _judge_module(call, module)
        else:
            yield at(call, "hides-code", "imports a module whose name is not constant")


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[Found]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from _judge_module(node, alias.name)
            if alias.name.partition(".")[0] == "forbiddenfruit":
                yield at(node, "patches-library", f"imports {alias.name}")
        return
    module = node.module or ""
    yield from _judge_module(node, module)
    if module.partition(".")[0] == "forbiddenfruit":
        yield at(node, "patches-library", f"imports {module}")
    for alias in node.names:
        if module == "kernelbench_dist":
            yield from _judge_module(node, f"{module}.{alias.name}")
        if alias.name == "Model":
            yield at(node, "uses-reference", f"imports Model from {module or 'its folder'}")


def _judge_module(node: ast.AST, module: str) -> Iterator[Found]:
    parts = module.split(".")
    if module == "__main__" or (
        parts[0] == "kernelbench_dist" and parts[1:2] and parts[1] in _JUDGE
    ):
        yield at(node, "reads-judge", f"imports {module}")
    elif parts[0] == "problems" or parts[:2] == ["kernelbench_dist", "problems"]:
        yield at(node, "uses-reference", f"imports {module}")


def modules(code: Code) -> Iterator[Found]:
    """sys.modules, other than to look up the submission's own name."""
    for node in code.nodes:
        if not (isinstance(node, (ast.Attribute, ast.Name, ast.Call))):
            continue
        if "sys.modules" not in code.resolve(node) or isinstance(
            getattr(node, "ctx", 0), ast.Store
        ):
            continue
        key = _module_key(code, node)
        if isinstance(key, ast.Name) and key.id == "__name__":
            continue
        name = code.fold(key)
        bound = code.scopes.parent.get(node)
        if isinstance(bound, (ast.Assign, ast.NamedExpr)):
            continue  # judged where the alias is used
        if not isinstance(name, str):
            yield at(node, "reads-judge", "looks through sys.modules")
        elif name == "__main__" or name.startswith("kernelbench"):
            yield at(node, "reads-judge", f"takes {name} from sys.modules")


def _module_key(code: Code, node: ast.AST) -> ast.expr | None:
    parent = code.scopes.parent.get(node)
    if isinstance(parent, ast.Subscript) and parent.value is node:
        return parent.slice
    if isinstance(parent, ast.Compare) and node in parent.comparators:
        return parent.left
    if isinstance(parent, ast.Attribute) and parent.attr in ("get", "pop", "__getitem__"):
        call = code.scopes.parent.get(parent)
        if isinstance(call, ast.Call) and call.args:
            return call.args[0]
    return None


def files(code: Code) -> Iterator[Found]:
    """Reading, and writing, of files; some places are nobody's business."""
    for call in code.calls:
        names = code.resolve(call.func)
        reader = next((n for n in sorted(names) if n in _READERS), None)
        texts = [*call.args]
        if reader is None:
            is_path = any(n.startswith("pathlib.") for n in names) or (
                not names and isinstance(call.func, ast.Attribute)
            )
            if not (is_path and isinstance(call.func, ast.Attribute)):
                continue
            if call.func.attr not in _PATH_METHODS or _is_stream(code, call):
                continue
            reader, texts = call.func.attr, [call.func.value, *call.args]
        strings = [s for text in texts for s in _strings(code, text)]
        bad = next((s for s in strings if any(p in s for p in _BAD_PATHS)), None)
        if bad is not None:
            yield at(call, "reads-files", f"reads files at {bad!r}")
        else:
            yield at(call, "reads-files", f"opens files with {reader}", "warning")


def _is_stream(code: Code, call: ast.Call) -> bool:
    """x.open() of what is no path: only a name or expression about paths counts where unknown."""
    assert isinstance(call.func, ast.Attribute)
    return call.func.attr in ("open", "glob") and not code.resolve(call.func)


def _strings(code: Code, node: ast.AST, depth: int = 0) -> Iterator[str]:
    """All constant text in an expression and in what its names are bound to."""
    if isinstance(value := code.fold(node), str):
        yield value
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value
        elif isinstance(part, (ast.Name, ast.Attribute)):
            yield from (n for n in code.resolve(part) if n.startswith("kernelbench_dist"))
            found = code.scopes.of.get(part, code.scopes.module)
            scope = found.find(part.id) if isinstance(part, ast.Name) else None
            for bound in scope.names.get(getattr(part, "id", ""), []) if scope else []:
                if bound.value is not None and depth < 4:
                    yield from _strings(code, bound.value, depth + 1)


def memory(code: Code) -> Iterator[Found]:
    """ctypes: a warning, and an error where it loads the C library or takes any address."""
    for node in code.nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
            if any((name or "").partition(".")[0] == "ctypes" for name in names):
                yield at(node, "uses-ctypes", "imports ctypes")
        if not isinstance(node, ast.Call):
            continue
        for name in code.resolve(node.func):
            last = name.rpartition(".")[2]
            is_loader = name.startswith("ctypes.") and (
                last in ("CDLL", "PyDLL", "LoadLibrary") or name.startswith("ctypes.util.find")
            )
            if not is_loader:
                continue
            strings = [s for a in node.args for s in _strings(code, a)]
            is_none = any(isinstance(a, ast.Constant) and a.value is None for a in node.args)
            if is_none or not node.args or any(p in s for s in strings for p in _LIBC):
                yield at(node, "reads-memory", f"loads the C library with {name}")
            elif name.startswith("ctypes.util.") and "c" in strings:
                yield at(node, "reads-memory", "looks for the C library")


def code_from_text(code: Code) -> Iterator[Found]:
    """exec and eval of text that the check could not read; what it could is in the file's tree."""
    for call in code.calls:
        for name in code.resolve(call.func):
            if name not in ("builtins.exec", "builtins.eval", "builtins.compile"):
                continue
            # exec(compile(...)): what is compiled is judged there.
            if call.args and "builtins.compile()" in code.resolve(call.args[0]):
                continue
            text = code.fold(call.args[0]) if call.args else None
            short = name.removeprefix("builtins.")
            if not isinstance(text, (str, bytes)):
                yield at(call, "hides-code", f"{short}() of text that is not constant")
            elif parsed(text) is None:
                yield at(call, "hides-code", f"{short}() of text that does not parse")


def parsed(text: str | bytes) -> ast.Module | None:
    """The text's tree, None where it does not parse."""
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text.strip() if isinstance(text, str) else text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def output(code: Code) -> Iterator[Found]:
    """Printing, which is harmless and pointless."""
    for call in code.calls:
        if "builtins.print" in code.resolve(call.func):
            yield at(call, "writes-output", "prints")
