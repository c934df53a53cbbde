"""The tools for agents: their schemas, what is said of wrong arguments, and what is recorded."""

from __future__ import annotations

import hashlib
import inspect

import pytest
from submissions import gather_linear

from kernelbench_dist import harness
from kernelbench_dist.harness import StaticResult, tools
from kernelbench_dist.harness.tools import Trail, call, definitions

NAMES = [
    "list_problems",
    "prompt",
    "check_problem",
    "static_check",
    "compile_kernel",
    "run_correctness",
    "fuzz",
    "submit_kernel",
    "profile_kernel",
    "sanitize",
    "disassemble",
    "get_gpu_specs",
]
FULL = "level2/47_virtual_all_gather_concat_linear"


@pytest.fixture
def trail(tmp_path) -> Trail:
    return Trail(tmp_path / "trail.jsonl")


def schemas():
    return {tool["name"]: tool["input_schema"] for tool in definitions()}


def test_every_tool_has_a_description_and_described_arguments():
    assert [tool["name"] for tool in definitions()] == NAMES
    for tool in definitions():
        assert tool["description"]
        assert "Args:" not in tool["description"]
        assert tool["input_schema"]["additionalProperties"] is False
        for name, argument in tool["input_schema"]["properties"].items():
            assert argument.get("description"), (tool["name"], name)


@pytest.mark.parametrize("name", NAMES[2:])
def test_schemas_follow_the_signatures(name):
    schema = schemas()[name]
    parameters = dict(inspect.signature(getattr(harness, name)).parameters)
    for hidden in ("progress", "store", "keep"):
        parameters.pop(hidden, None)
    assert list(schema["properties"]) == list(parameters)
    needed = [k for k, p in parameters.items() if p.default is inspect.Parameter.empty]
    assert schema.get("required", []) == needed
    for key, parameter in parameters.items():
        if key not in needed:
            assert schema["properties"][key]["default"] == parameter.default


def test_a_served_problem_need_not_be_named():
    required = {t["name"]: t["input_schema"].get("required") for t in definitions()}
    optional = {
        t["name"]: t["input_schema"].get("required") for t in definitions(optional_problem=True)
    }
    assert required["fuzz"] == ["source", "problem"]
    assert optional["fuzz"] == ["source"]
    assert call("prompt", {}, served_problem="47")["report"].startswith(f"# Task: {FULL}")


SOURCE = gather_linear()


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("compile", {}, f"no tool 'compile'; {', '.join(NAMES)} are accepted"),
        ("prompt", {}, "problem is missing; a string is accepted"),
        ("prompt", {"problem": None}, "problem is None; a string is accepted"),
        ("prompt", {"problem": "nosuch"}, "no problem 'nosuch'"),
        ("prompt", {"problem": "47", "x": 1}, "no argument 'x'; its arguments are: problem"),
        ("list_problems", {"x": 1}, "its arguments are: tag"),
        ("run_correctness", {"trials": "5"}, "trials is '5'; an integer is accepted"),
        ("run_correctness", {"trials": True}, "trials is True; an integer is accepted"),
        ("run_correctness", {"trials": 0}, "trials is 0; 1 to 10000 is accepted"),
        ("run_correctness", {"dtype": "int8"}, "dtype is 'int8'; 'float16' or 'bfloat16' or"),
        ("run_correctness", {"sizes": {"B": 1.5}}, "sizes has {'B': 1.5}; a string or an object"),
        ("run_correctness", {"device": "tpu"}, "device is 'tpu'; 'cpu', 'cuda' and 'cuda:N'"),
        ("submit_kernel", {"rounds": 3}, "rounds is 3; an int of 8 or more is accepted"),
        ("fuzz", {"values": ["odd"]}, "values hold 'odd'; normal"),
        ("fuzz", {"store": "/tmp"}, "fuzz has no argument 'store'"),
        ("static_check", {"source": "nosuch.py"}, "no file nosuch.py"),
        ("static_check", {"source": " \n"}, "is empty"),
        ("static_check", {"source": "a\ud800\n"}, "holds a lone surrogate at offset 1"),
    ],
)  # fmt: skip
def test_wrong_calls_get_an_error_that_says_what_is_accepted(trail, name, arguments, said):
    if name in ("run_correctness", "submit_kernel", "fuzz"):
        arguments = {"source": SOURCE, "problem": "47", **arguments}
    answer = call(name, arguments, trail=trail)
    assert list(answer) == ["error"]
    assert said in answer["error"]
    (entry,) = trail.read()
    assert (entry.tool, entry.verdict, entry.reason) == (
        name,
        None,
        answer["error"].encode("utf-8", "backslashreplace").decode(),
    )


@pytest.mark.parametrize("source", ["mine.py", "/etc/passwd", "class ModelNew: pass"])
def test_from_elsewhere_a_source_is_text(write, monkeypatch, tmp_path, source):
    write(SOURCE, "mine.py")
    monkeypatch.chdir(tmp_path)
    error = call("static_check", {"source": source}, local=False)["error"]
    assert error == f"source is {source!r}; the text of a whole file is accepted, and no path"
    assert "result" in call("static_check", {"source": SOURCE}, local=False)
    assert "result" in call("static_check", {"source": "mine.py"})


def test_from_elsewhere_a_problem_is_a_name(write, trail):
    mine, secret = write("# mine\n", "mine.py"), write("# secret\n", "secret.py")
    served = {"local": False, "served_problem": str(mine)}
    said = "a name from list_problems is accepted, and no path"
    there = call("prompt", {"problem": str(secret)}, trail=trail, **served)
    missing = call("prompt", {"problem": str(secret) + "x.py"}, **served)
    for answer in (there, missing):
        assert answer["error"].endswith(said)
    assert "secret" not in str(trail.read()[0].submission)
    assert "# mine" in call("prompt", {}, **served)["report"]
    assert call("prompt", {"problem": "47"}, **served)["report"].startswith(f"# Task: {FULL}")


def test_a_result_comes_as_values_and_as_a_report(trail):
    tokens = {"prompt": 3, "completion": 4}
    arguments = {"source": SOURCE, "problem": "47"}
    answer = call("static_check", arguments, trail=trail, model="look", tokens=tokens)
    result = StaticResult.from_dict(answer["result"])
    assert result.passed
    assert answer["report"] == str(result)
    (entry,) = trail.read()
    assert entry.sha256 == hashlib.sha256(SOURCE.encode()).hexdigest()
    assert (entry.tool, entry.problem, entry.verdict.value) == ("static_check", FULL, "PASSED")
    assert entry.model == "look"
    assert entry.tokens is not None
    assert entry.tokens.model_dump() == tokens


def test_what_progress_raises_ends_the_call_and_is_recorded(trail):
    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call("static_check", {"source": SOURCE}, trail=trail, progress=stop)
    (entry,) = trail.read()
    assert (entry.verdict, entry.reason) == (None, "the call broke off: KeyboardInterrupt")


def test_a_fault_of_the_judge_is_raised_and_recorded(trail, monkeypatch):
    def broken(source, problem=None):
        raise RuntimeError("a bug")

    tools._arguments("static_check")
    monkeypatch.setitem(tools._TOOLS, "static_check", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        call("static_check", {"source": SOURCE}, trail=trail)
    assert trail.read()[0].reason == "the call broke off: RuntimeError: a bug"


def test_the_callers_own_faults_are_raised(trail, tmp_path):
    with pytest.raises(ValueError, match="prompt"):
        call("list_problems", {}, trail=trail, tokens={"prompt": "many"})
    with pytest.raises(ValueError, match="a folder"):
        call("list_problems", {}, trail=tmp_path)
