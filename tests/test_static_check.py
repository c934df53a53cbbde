"""The static check: each trick is found, honest code is left alone, and nothing is run."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import textwrap
from pathlib import Path

import pytest
from exploit_cases import CASES, FOLDER, HONEST, HONEST_ON_GPU
from static_cases import C_FINE, C_FOUND, DEEP, FINE, FORWARD, FOUND, INLINE, JIT, KINDS

from kernelbench_dist.harness import StaticResult, static_check
from kernelbench_dist.harness._submission import read_submission
from kernelbench_dist.harness.static import _c_tokens
from kernelbench_dist.harness.static._rules import RULES

MODEL = """
class ModelNew(nn.Module):
    def __init__(self, ranks: int = 4, features: int = 32, outputs: int = 56):
        super().__init__()
        self.proj = nn.Linear(ranks * features, outputs)
        self.cache, self.n, self.packed = {}, 0, None
"""
HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"


def submission(top: str = "", forward: str = FORWARD, more: str = "") -> str:
    """A whole file: `top` at its top level, `forward` the body of forward, `more` methods."""
    body = textwrap.indent(textwrap.dedent(forward).strip(), " " * 8)
    methods = textwrap.indent(textwrap.dedent(more).strip(), " " * 4)
    top = textwrap.dedent(top).strip()
    return f"{HEAD}{top}\n{MODEL}\n    def forward(self, x):\n{body}\n\n{methods}\n"


def rules(result: StaticResult, severity: str | None = None) -> set[str]:
    return {f.rule for f in result.findings if severity in (None, f.severity)}


# The folders of submissions


def test_the_table_names_every_file() -> None:
    assert {p.stem for p in FOLDER.glob("*.py")} - {"conftest"} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_exploits(name: str) -> None:
    case, result = CASES[name], static_check(FOLDER / f"{name}.py", "level2/47")
    assert result.verdict.value == case.static, result.findings
    assert case.rule is None or case.rule in rules(result)
    assert "PASSED" not in case.run or case.why  # a trick that may pass has its reason
    if case.static == "CHEATING":
        assert case.rule in rules(result, "error")
        first = next(f for f in result.findings if f.severity == "error")
        assert result.reason == f"{FOLDER / name}.py:{first.line}: {first.message}"


@pytest.mark.parametrize("path", sorted(HONEST.glob("*.py")), ids=lambda p: p.stem)
def test_honest_submissions_have_no_finding(path: Path) -> None:
    if path.stem != "conftest":
        result = static_check(path)
        assert (result.verdict.value, result.findings) == ("PASSED", ())


def test_kinds_of_the_honest_submissions() -> None:
    kinds = {p.stem: read_submission(p).kind for p in HONEST.glob("*.py") if p.stem != "conftest"}
    expected = dict.fromkeys(kinds, "torch")
    expected |= {"cpp_loop": "cpp", "cuda_two_kernels": "cuda", "cuda_warp": "cuda"}
    assert kinds == {**expected, "triton_rows": "triton"}
    assert set(HONEST_ON_GPU) <= set(kinds)


# Each rule, and its near misses


@pytest.mark.parametrize(("rule", "severity", "top", "forward"), FOUND)
def test_found(rule: str, severity: str, top: str, forward: str) -> None:
    result = static_check(submission(top, forward))
    assert rule in rules(result, severity), result.findings
    assert result.verdict.value == ("CHEATING" if rules(result, "error") else "PASSED")


@pytest.mark.parametrize(("top", "forward"), FINE)
def test_fine(top: str, forward: str) -> None:
    result = static_check(submission(top, forward))
    assert (result.verdict.value, result.findings) == ("PASSED", ())


def test_every_rule_is_tested() -> None:
    tested = {rule for rule, *_ in FOUND} | {case.rule for case in CASES.values()}
    assert set(RULES) - tested == {"unread-model", "too-deep"}  # further down


def test_where_a_seed_is_set_matters() -> None:
    text = submission().replace("super().__init__()", "super().__init__(); torch.manual_seed(3)")
    result = static_check(text)
    assert [(f.rule, f.severity) for f in result.findings] == [("guesses-seeds", "warning")]


def test_helpers_that_forward_calls_are_read_and_others_not() -> None:
    helper = "def help(self, x):\n    return x @ self.proj.weight"
    used = static_check(submission('KIND = "cuda"', "return self.help(x)", helper))
    assert rules(used) == {"torch-in-forward"}
    unused = static_check(submission('KIND = "cuda"', "return ext.f(x)", helper))
    assert unused.findings == ()


def test_backward_may_use_torch() -> None:
    top = """
        KIND = "cuda"
        class Fn(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                {0}
            @staticmethod
            def backward(ctx, g):
                return g @ g
    """
    fine = static_check(submission(top.format("return ext.f(x)"), "return Fn.apply(x)"))
    assert fine.findings == ()
    wrong = static_check(submission(top.format("return x @ x"), "return Fn.apply(x)"))
    assert rules(wrong, "error") == {"torch-in-forward"}


def test_a_model_that_inherits_its_forward() -> None:
    text = 'import torch\nKIND = "cuda"\nclass ModelNew(torch.nn.Linear):\n  pass\n'
    result = static_check(text)
    assert [(f.rule, f.line) for f in result.findings] == [("torch-in-forward", 3)]
    assert static_check(text.replace('"cuda"', '"torch"')).findings == ()


# C++, CUDA and PTX


def inline(text: str) -> str:
    return submission(f"{INLINE}ext = load_inline('m', cpp_sources={text!r})", "return ext.f(x)")


@pytest.mark.parametrize(("rule", "severity", "text"), C_FOUND)
def test_found_in_c(rule: str, severity: str, text: str) -> None:
    result = static_check(inline(text))
    assert rule in rules(result, severity), result.findings


@pytest.mark.parametrize("text", C_FINE)
def test_fine_in_c(text: str) -> None:
    assert static_check(inline(text)).findings == ()


def test_c_text_that_is_not_compiled_is_only_text() -> None:
    assert static_check(submission(f"TEXT = {'at::matmul(a, b);'!r}")).findings == ()


def test_c_text_is_found_through_names_lists_and_functions() -> None:
    heads = [
        "S = 'x'\nS2 = [S, 'at::mm(a, b);']\nload_inline('m', S2)",
        "def s():\n  return 'at::mm(a, b);'\nload_inline(name='m', cpp_sources=s())",
        "from torch.utils import cpp_extension as X\nX.load_inline('m', '', 'at::mm(a, b);')",
        "N = 3\nload_inline('m', f'at::mm(a, b); {N}')",
    ]
    for head in heads:
        assert "library-in-kernel" in rules(static_check(submission(INLINE + head)), "error"), head


def test_lines_of_c_text_are_lines_of_the_file() -> None:
    text = submission(INLINE + 'load_inline("m", """\nint x;\n/*\n*/ at::mm(a, b);\n""")')
    finding = next(f for f in static_check(text).findings if f.severity == "error")
    assert finding.code == "*/ at::mm(a, b);"
    assert text.splitlines()[finding.line - 1] == finding.code


def test_tokens_of_c() -> None:
    text = 'a->b /*\n*/ "s\\"" \'c\' 1\'0.5e-3f\n asm("p" : :) x ## y'
    found = [(t.kind, t.text, t.line) for t in _c_tokens.tokens(text)]
    assert found == [
        ("word", "a", 0),
        ("sign", "->", 0),
        ("word", "b", 0),
        ("string", '"s\\""', 1),
        ("number", "1'0.5e-3f", 1),
        ("word", "asm", 2),
        ("sign", "(", 2),
        ("assembly", '"p"', 2),
        ("sign", ":", 2),
        ("sign", ":", 2),
        ("sign", ")", 2),
        ("word", "xy", 2),
    ]


# Verdicts and what is said


def test_what_a_finding_says() -> None:
    result = static_check(submission("import time\ntime.perf_counter = lambda: 0.0"), "level2/47")
    (finding,) = result.findings
    assert (finding.rule, finding.severity) == ("patches-timer", "error")
    assert (finding.line, finding.column) == (5, 1)
    assert finding.code == "time.perf_counter = lambda: 0.0"
    assert finding.message == (
        "changes time.perf_counter; leave the functions that measure time as they are"
    )
    assert result.reason == f"<source>:5: {finding.message}"
    assert result.problem == "level2/47"
    assert StaticResult.from_dict(json.loads(result.to_json())) == result


def test_a_syntax_error_is_a_compile_error(write) -> None:
    path = write("import torch\n\nclass ModelNew(\n", "broken.py")
    result = static_check(path)
    assert (result.verdict.value, result.findings) == ("COMPILE_ERROR", ())
    assert result.reason == f"{path}:3: '(' was never closed"


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n",
        "class ModelNew: pass\n",
        "class Model(object): pass\n",
        "def ModelNew(): pass\n",
        "def f():\n  import torch\n  class ModelNew(torch.nn.Module): pass\n",
        "'''class ModelNew(nn.Module): pass'''\n",
    ],
)
def test_no_model(text: str) -> None:
    result = static_check(text)
    assert result.verdict.value == "RUNTIME_ERROR"
    assert result.reason == "<source> defines no class ModelNew(nn.Module)"


@pytest.mark.parametrize(
    "text",
    [
        "import torch.nn as n\nclass B(n.Module):\n  forward = F\nclass ModelNew(B): pass\n",
        "from torch import *\nclass ModelNew(nn.Module):\n  forward = F\n",
        "import torch\nif 1:\n  class ModelNew(torch.nn.Module):\n    forward = F\n",
    ],
)
def test_models_that_are_found(text: str) -> None:
    result = static_check(text.replace("forward = F", "def forward(self, x): return x"))
    assert (result.verdict.value, result.findings) == ("PASSED", ())


def test_a_model_that_cannot_be_read() -> None:
    result = static_check("from torch import nn\nModelNew = type('M', (nn.Module,), {})\n")
    assert [(f.rule, f.severity) for f in result.findings] == [("unread-model", "warning")]
    assert (result.verdict.value, result.reason) == ("PASSED", "1 warning and no error")


def test_nothing_is_run(tmp_path: Path) -> None:
    text = submission(f"open({str(tmp_path / 'made')!r}, 'w').close()\nraise SystemExit")
    assert static_check(text).verdict.value == "CHEATING"
    assert list(tmp_path.iterdir()) == []


# Odd code


def test_the_standard_library_is_read_without_an_exception() -> None:
    folder = Path(os.__file__).parent
    for name in ("ast", "dataclasses", "enum", "functools", "subprocess", "threading", "typing"):
        assert static_check(folder / f"{name}.py").verdict.value in ("CHEATING", "RUNTIME_ERROR")


ODD = """
async def f(x, /, *a, y: int = 3, **k):
    async with x as (p, *q), y: ...
    async for i, in x: yield (await i)
    return
match 1:
    case {"a": [1, *rest], **more} | {"b": rest, **more}: x = y = z = lambda *a, b=(c := 3): c
    case [ModelOld(), str(name) as torch2]: del x, y[0], z.a
    case _: pass
def g(): global h, m; h = g; m = [h for h in m if (n := h)]; return g(), h
class C(*[object], metaclass=type, **{}): a: int; b = a; a = b; __slots__ = ()
a = b; b = a; a.b = b.a; a.a.a = a.a
x: "int"
[*x, y.z] = *w, v = {**u}, f"{x!r:>{y}}" f"{(lambda: 1)()}"
@(yes := d)
@d()[0].e
def deco(): nonlocal_ = 1; return deco
for deco().x in [1]: pass
with open("a") as b.c, d() as e[0]: pass
try: pass
except* (A, B) as e: raise
exec(*a); eval(**k); setattr(); getattr(torch); __import__(); compile(); vars(1, 2)(3)
import torch; torch.cuda.Stream(*a); torch.library.Library(); "".join(*a); chr(-1); "%d" % "x"
bytes(10 ** 12); "a" * 10 ** 12; "%999999999d" % 1; b"\\xff".decode(); [1][5]; (lambda: 0)()()
"""


def test_odd_syntax_is_read_without_an_exception() -> None:
    odd = ODD if hasattr(ast, "TryStar") else ODD.replace("except*", "except")
    assert static_check(submission(odd)).verdict.value == "CHEATING"  # exec of what is unknown
    inner = odd.replace("\n", "\n        ").replace("global", "nonlocal ModelNew; global")
    static_check(f"{HEAD}{MODEL}\n    def forward(self, x):\n        ModelNew = 1{inner}\n")


def test_folding_is_bounded() -> None:
    lines = ["a0 = 'ab' * 1000"] + [f"a{i + 1} = a{i} + a{i}" for i in range(60)]
    lines += ["b0 = ''"] + [f"b{i + 1} = b{i} + b{i}" for i in range(60)]
    result = static_check(submission("\n".join([*lines, "exec(a60)", "exec(b60)"])))
    assert rules(result, "error") == {"hides-code"}


@pytest.mark.parametrize("name", DEEP)
def test_what_is_nested_deeply_hides_nothing(name: str) -> None:
    fine = static_check(submission(DEEP[name]))
    assert (fine.verdict.value, fine.findings) == ("PASSED", ())
    found = static_check(submission(f"{DEEP[name]}\ntorch.cuda.Event = 1"))
    assert rules(found, "error") == {"patches-timer"}


def test_names_of_names_of_names_are_too_deep_to_be_read() -> None:
    names = "".join(f"a{i + 1} = a{i}\n" for i in reversed(range(300)))
    result = static_check(submission(f"{names}a0 = torch.cuda\na300.Event = 1"))
    assert "too-deep" in rules(result, "error")


def test_what_the_parser_cannot_take_is_a_compile_error() -> None:
    result = static_check(submission("y = " + "(" * 300 + ")" * 300))
    assert result.verdict.value == "COMPILE_ERROR"


# Reading submissions


def test_text_and_paths(write) -> None:
    text = submission()
    path = write(text, "good.py")
    given = read_submission(path)
    assert (given.name, given.text, given.kind) == (str(path), text, "torch")
    assert given.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert read_submission(str(path)).name == str(path)
    assert read_submission(text).name == "<source>"
    assert read_submission("ModelNew = 3").name == "<source>"
    assert given.source().kind_is_declared is False
    assert static_check(given).submission == given.source()


@pytest.mark.parametrize("source", ["absent.py", "no/such/file", Path("absent"), Path("x.py")])
def test_no_such_file(source: str | Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"no file {source}"):
        read_submission(source)


def test_what_is_no_submission(write, tmp_path: Path) -> None:
    for source, message in [
        ("", "<source> is empty"),
        (" \n", "<source> is empty"),
        ("x = 1\n\0", "<source> holds a NUL at offset 6"),
        ("x = '\udc80'\n", "<source> holds a lone surrogate at offset 5"),
        ("#" * 4_000_001 + "\n", "<source> has 4000002 bytes; at most 4000000 are accepted"),
        (tmp_path, "is a folder"),
        (Path("/dev/null"), "no regular file"),
    ]:
        with pytest.raises(ValueError, match=message):
            read_submission(source)
    for source in (3, None, b"x = 1"):
        with pytest.raises(TypeError, match="source text"):
            read_submission(source)  # type: ignore[arg-type]


def test_encodings(tmp_path: Path) -> None:
    path = tmp_path / "latin.py"
    path.write_bytes(b"# -*- coding: latin-1 -*-\nx = '\xe9'\n")
    assert "é" in read_submission(path).text
    path.write_bytes(b"\xef\xbb\xbfx = 1\r\ny = 2\r\n")
    assert read_submission(path).text == "x = 1\ny = 2\n"
    path.write_bytes(b"x = 1\n\n\ny = '\xe9'\n")
    with pytest.raises(ValueError, match=r"latin\.py is not utf-8 at offset 13"):
        read_submission(path)
    path.write_bytes(b"# coding: klingon\nx = 1\n")
    with pytest.raises(ValueError, match="unknown encoding"):
        read_submission(path)


@pytest.mark.parametrize(("top", "kind"), KINDS)
def test_kinds(top: str, kind: str) -> None:
    read = read_submission(submission(top))
    assert (read.kind, read.kind_is_declared) == (kind, False)


def test_a_declared_kind_comes_first() -> None:
    read = read_submission(submission(JIT + 'KIND: str = "cuda"'))
    assert (read.kind, read.kind_is_declared) == ("cuda", True)
    accepted = "accepted: 'cuda', 'cpp', 'triton', 'cute', 'torch'"
    with pytest.raises(ValueError, match=rf"KIND is 'rocm' \(line 4\); {accepted}"):
        read_submission(submission("KIND = 'rocm'"))
    with pytest.raises(ValueError, match=r"KIND is an expression \(line 4\)"):
        read_submission(submission("KIND = 'cu' + 'da'"))
