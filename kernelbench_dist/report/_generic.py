"""Any other result: its own fields by name, as far as they fit on a line each."""

from __future__ import annotations

from collections.abc import Iterator

from kernelbench_dist.harness._results import ProblemResult, Result
from kernelbench_dist.report._figures import NOT_MEASURED, figure, one_line
from kernelbench_dist.report._layout import paragraph, table

_HEAD = frozenset(Result.model_fields) | {"options"}


def fields(result: Result) -> Iterator[str]:
    """A line for each field that is one value; how many there are of the others."""
    for name in type(result).model_fields:
        if name in _HEAD:
            continue
        value = getattr(result, name)
        label = name.replace("_", " ")
        if value is None:
            yield f"  {label}: {NOT_MEASURED}"
        elif isinstance(value, bool | int):
            yield f"  {label}: {value}"
        elif isinstance(value, float):
            yield f"  {label}: {figure(value)}"
        elif isinstance(value, str):
            yield f"  {label}: {one_line(value)}"
        elif isinstance(value, tuple | list | dict):
            yield f"  {label}: {len(value)}"


def trivial_answers(result: ProblemResult) -> Iterator[str]:
    """Which trivial answers would pass for the problem."""
    if result.trivial_answers:
        yield from paragraph("trivial", "answers that were tried on the problem")
        rows = [(n, "passes" if ok else "fails") for n, ok in result.trivial_answers.items()]
        yield from table(("answer", "it"), rows)
