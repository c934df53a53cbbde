"""The judge's tools for agents: functions with a JSON schema, called by name.

>>> [tool["name"] for tool in definitions()][:2]
['list_problems', 'prompt']
>>> call("list_problems", {"tag": "broadcast"})["result"]["problems"][:2]
['level1/30_broadcast_masked_from_row0', 'level1/60_broadcast']
>>> call("prompt", {"problem": 47})
{'error': 'problem is 47; a string is accepted'}

What a call came to can go to a trail; see `Trail`.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from kernelbench_dist import problems
from kernelbench_dist.harness import (
    _prompt,
    check_problem,
    compile_kernel,
    disassemble,
    fuzz,
    get_gpu_specs,
    profile_kernel,
    run_correctness,
    sanitize,
    static_check,
    submit_kernel,
)
from kernelbench_dist.harness._results import Result, Source
from kernelbench_dist.harness._session import Progress, silent
from kernelbench_dist.harness._submission import read_submission
from kernelbench_dist.harness._trail import Delta, Entry, Figures, Tokens, Trail

__all__ = ["Delta", "Entry", "Figures", "Tokens", "Trail", "call", "definitions"]

_TOOLS: dict[str, Callable[..., Any]] = {
    tool.__name__: tool
    for tool in (
        problems.list_problems,
        _prompt.prompt,
        check_problem,
        static_check,
        compile_kernel,
        run_correctness,
        fuzz,
        submit_kernel,
        profile_kernel,
        sanitize,
        disassemble,
        get_gpu_specs,
    )
}
# Not an agent's: where files go, and who watches.
_HIDDEN = ("progress", "store", "keep")
_DTYPE = Literal["float16", "bfloat16", "float32", "float64"]
_TYPES: dict[str, Any] = {"source": str, "problem": str, "dtype": _DTYPE}
_DESCRIPTIONS = {
    "source": "the text of the whole Python file that defines ModelNew",
    "problem": "a problem's name, such as 'level2/47' or '47'; list_problems names them all",
    "tag": "only the problems that call this collective, such as 'all_gather' or 'send_recv'",
}


def definitions(*, optional_problem: bool = False) -> list[dict[str, Any]]:
    """The tools: each a dict of "name", "description" and "input_schema" (JSON Schema).

    optional_problem: whether `problem` may be left out, because `call` is given one to serve.
    """
    return [
        {
            "name": name,
            "description": _description(function),
            "input_schema": _schema(name, optional_problem),
        }
        for name, function in _TOOLS.items()
    ]


def _schema(name: str, optional_problem: bool) -> dict[str, Any]:
    schema = _arguments(name).model_json_schema()
    if optional_problem and "required" in schema:
        schema["required"] = [key for key in schema["required"] if key != "problem"]
    return schema


def call(
    name: str,
    arguments: Mapping[str, Any],
    *,
    trail: Trail | str | os.PathLike[str] | None = None,
    model: str | None = None,
    model_seconds: float | None = None,
    tokens: Tokens | Mapping[str, int | None] | None = None,
    progress: Progress | None = None,
    local: bool = True,
    served_problem: str | None = None,
) -> dict[str, Any]:
    """Call a tool by its name.

    Args:
        name, arguments: as `definitions` describes them. A `source` may be a path, too, and a
            `problem` a file, unless `local` is False.
        trail: where the call is recorded, also one that fails.
        model: the text in which a model asked for it, for the trail.
        model_seconds: that the model took for it, for the trail.
        tokens: {"prompt": ..., "completion": ...}, for the trail.
        progress: called with what is being done, and once more before the result is recorded.
            What it raises ends the call.
        local: whether who calls may read this machine's files. If not, `source` is text, and
            `problem` one of the suite's or `served_problem`.
        served_problem: what `problem` is where it is not given; a name or a file.

    Returns:
        {"result": a dict, "report": text}, or {"error": text} where the call itself was wrong: an
        unknown tool, or an argument's name or value.

    Raises:
        ValueError: `tokens`, `model_seconds` or `trail` is wrong.
        OSError: the trail cannot be written.
        Exception: the judge itself failed, which the trail says, too.
    """
    book = trail if trail is None or isinstance(trail, Trail) else Trail(trail)
    counts = None if tokens is None else Tokens.model_validate(tokens)
    if model_seconds is not None and not (
        type(model_seconds) in (int, float) and model_seconds >= 0
    ):
        raise ValueError(f"model_seconds is {model_seconds!r}; a number of 0 or more is accepted")
    started = time.monotonic()

    def record(result: Result | None = None, reason: str = "") -> Entry | None:
        if book is None:
            return None
        problem = arguments.get("problem", served_problem)
        return book.add(
            name,
            result,
            seconds=time.monotonic() - started,
            source=None if result else _source(arguments.get("source"), local),
            problem=None if problem is None else _named(problem),
            reason=reason,
            model=model,
            model_seconds=model_seconds,
            tokens=counts,
        )

    tell = progress or silent
    try:
        found = _run(name, arguments, tell, local, served_problem)
        tell("done")
    except (ValueError, TypeError, FileNotFoundError) as error:
        record(reason=str(error))
        return {"error": str(error)}
    except BaseException as error:
        record(reason=f"the call broke off: {type(error).__name__}: {error}".rstrip(": "))
        raise
    if not isinstance(found, Result):
        record()
        key = "prompt" if isinstance(found, str) else "problems"
        text = found if isinstance(found, str) else "\n".join(found)
        return {"result": {key: found}, "report": text}
    entry = record(found)
    changes = entry.changes() if entry else ""
    report = "\n".join(filter(None, (str(found), changes)))
    return {"result": found.to_dict(), "report": report}


def _run(
    name: str,
    arguments: Mapping[str, Any],
    progress: Progress,
    local: bool,
    served_problem: str | None,
) -> Any:
    if name not in _TOOLS:
        raise ValueError(f"no tool {name!r}; {', '.join(_TOOLS)} are accepted")
    function = _TOOLS[name]
    if served_problem is not None and "problem" in _arguments(name).model_fields:
        arguments = {"problem": served_problem, **arguments}
    try:
        checked = _arguments(name).model_validate(dict(arguments))
    except ValidationError as error:
        raise ValueError(_wrong(name, error)) from None
    given = {key: getattr(checked, key) for key in checked.model_fields_set}
    if not local:
        _check_remote(given, served_problem)
    if "progress" in inspect.signature(function).parameters:
        given["progress"] = progress
    return function(**given)


def _check_remote(given: Mapping[str, Any], served_problem: str | None) -> None:
    """Refuse what would have a file of this machine read for somebody elsewhere."""
    source, problem = given.get("source"), given.get("problem")
    # Text of several lines is never taken for a path.
    if source is not None and "\n" not in source:
        raise ValueError(
            f"source is {_shown(source)}; the text of a whole file is accepted, and no path"
        )
    if problem is None or problem == served_problem:
        return
    try:
        name, path = problems.find(problem)
    except FileNotFoundError:
        name, path = "", Path()
    if name.partition("@")[0] not in problems.list_problems() or path != problems.find(name)[1]:
        raise ValueError(
            f"problem is {_shown(problem)}; a name from list_problems is accepted, and no path"
        )


# Schemas


@cache
def _arguments(name: str) -> type[BaseModel]:
    """The arguments of a tool as a model, from its signature and docstring."""
    function = _TOOLS[name]
    hints, said = get_type_hints(function), _argument_texts()
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        key, default = parameter.name, parameter.default
        if key in _HIDDEN:
            continue
        annotation = _TYPES.get(key, hints[key])
        if default is None:
            annotation = annotation | None
        required = default is inspect.Parameter.empty
        text = said.get((name, key)) or said.get(("", key))
        fields[key] = (annotation, Field(default=... if required else default, description=text))
    config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())
    return create_model(name, __config__=config, **fields)


@cache
def _argument_texts() -> dict[tuple[str, str], str]:
    """What docstrings say of (tool, argument), and under ("", argument) what the first one says."""
    texts: dict[tuple[str, str], str] = {}
    for name, function in _TOOLS.items():
        doc = inspect.getdoc(function) or ""
        section = re.search(r"^Args:\n((?:    .*\n|\n)+)", doc + "\n", re.MULTILINE)
        joined = re.sub(r"\n {5,}", " ", section[1]) if section else ""
        for line in joined.splitlines():
            keys, _, text = line.strip().partition(": ")
            if text.startswith(("as for ", "as `")):
                continue
            for key in keys.split(", "):
                texts[name, key] = text
                texts.setdefault(("", key), text)
    return (
        texts
        | {("", key): text for key, text in _DESCRIPTIONS.items()}
        | {(name, key): text for name in _TOOLS for key, text in _DESCRIPTIONS.items()}
    )


def _description(function: Callable[..., Any]) -> str:
    """The docstring up to its sections, which are for Python."""
    doc = inspect.getdoc(function) or ""
    return re.split(r"\n+(?:Args|Returns|Raises):\n|\n+>>> ", doc)[0].strip()


def _wrong(name: str, error: ValidationError) -> str:
    """One phrase for each argument that is wrong."""
    schema = _arguments(name).model_json_schema()
    accepted = schema.get("properties", {})
    phrases: dict[str, str] = {}
    for one in error.errors():
        key = str(one["loc"][0])
        if one["type"] == "missing":
            phrases[key] = f"{key} is missing; {_accepted(accepted[key])} is accepted"
        elif key not in accepted:
            known = ", ".join(accepted) or "none"
            phrases[key] = f"{name} has no argument {_shown(key)}; its arguments are: {known}"
        else:
            value = one["input"]
            what = f"{'.'.join(map(str, one['loc']))} is" if len(one["loc"]) == 1 else f"{key} has"
            phrases.setdefault(
                key, f"{what} {_shown(value)}; {_accepted(accepted[key])} is accepted"
            )
    return "; ".join(phrases.values())


_WORDS = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}


def _accepted(schema: Mapping[str, Any]) -> str:
    """
    >>> _accepted({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]})
    'a list of (a string) or null'
    """
    if "enum" in schema:
        return " or ".join(repr(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_accepted(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"a list of ({_accepted(schema['items'])})"
    if schema.get("type") == "object":
        return f"an object whose values are ({_accepted(schema['additionalProperties'])})"
    return _WORDS[schema["type"]]


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 100 else f"{text[:80]}... ({len(text)} characters)"


def _source(source: Any, local: bool) -> Source | None:
    """What can be said of a source whose call failed: all, its hash, or nothing."""
    if not isinstance(source, str):
        return None
    try:
        if not local and "\n" not in source:
            raise ValueError("a path, perhaps, and not to be read")
        return read_submission(source).source()
    except (ValueError, FileNotFoundError):
        digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
        return Source(name="<source>", sha256=digest, kind="torch", kind_is_declared=False)


def _named(problem: Any) -> str:
    """Its full name, so that a trail has one for each problem; else what was given."""
    try:
        return problems.find(problem)[0]
    except (ValueError, TypeError, OSError):
        return problem if isinstance(problem, str) else repr(problem)
