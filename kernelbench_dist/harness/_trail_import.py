"""Trails of other systems, by the schema of docs/reports.md."""

from __future__ import annotations

import hashlib
import os
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator
from typing_extensions import Self

from kernelbench_dist.harness._results import Frozen
from kernelbench_dist.harness._trail import Delta, Entry, Figures, Tokens, Trail, judged
from kernelbench_dist.harness._verdicts import Verdict

_MOST_SAID = 20

Seconds = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


class TheirFigures(Frozen):
    """As `Figures`. What compares two times must be there whole, and what is there must be so."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    warm_us: Positive | None = None
    cold_us: Positive | None = None
    call_us: Positive | None = None
    kind: Literal["warm", "cold", "call"] | None = None
    ratio: Positive | None = None
    ratio_low: Positive | None = None
    ratio_high: Positive | None = None
    launches: Annotated[int, Field(ge=0)] | None = None
    roofline_fraction: Positive | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.kind is not None and getattr(self, f"{self.kind}_us") is None:
            raise ValueError(f"kind is {self.kind!r}, and {self.kind}_us is missing")
        ends = (self.ratio_low, self.ratio, self.ratio_high)
        if any(end is not None for end in ends):
            if self.ratio is None or (self.ratio_low is None) != (self.ratio_high is None):
                raise ValueError("ratio is given alone, or with both ratio_low and ratio_high")
            if self.ratio_low and self.ratio_high and list(ends) != sorted(ends):  # type: ignore[type-var]
                raise ValueError(f"ratio_low, ratio, ratio_high are {ends}, and must ascend")
        return self


class Line(Frozen):
    """One call. Of a trail of our own, what follows from the other lines is worked out anew."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, populate_by_name=True)

    schema_version: Literal["kernelbench_dist.trail/1"] | None = Field(default=None, alias="schema")
    time: str
    tool: Annotated[str, Field(min_length=1)]
    submission: str | None = None
    source: str | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    problem: str | None = None
    device: str | None = None
    device_name: str | None = None
    dtype: str | None = None
    sizes: dict[str, int] | None = None
    backward: bool | None = None
    ranks: Literal["virtual", "gloo"] | None = None
    verdict: Verdict | None = None
    reason: str = ""
    seconds: Seconds | None = None
    model_seconds: Seconds | None = None
    figures: TheirFigures | None = None
    model: str | None = None
    tokens: Tokens | None = None

    delta_to_last: Delta | None = Field(default=None, exclude=True)
    delta_to_best: Delta | None = Field(default=None, exclude=True)
    source_is_correct: bool | None = Field(default=None, exclude=True)

    @field_validator("time")
    @classmethod
    def _has_a_zone(cls, value: str) -> str:
        if datetime.fromisoformat(value.replace("Z", "+00:00")).tzinfo is None:
            raise ValueError("a time with its zone is accepted, as 2026-01-31T12:00:00+00:00")
        return value

    @model_validator(mode="after")
    def _source_fits(self) -> Self:
        found = self.source is not None and hashlib.sha256(self.source.encode()).hexdigest()
        if found and self.sha256 not in (None, found):
            raise ValueError(f"sha256 is {self.sha256}, and that of source is {found}")
        return self

    def entry(self) -> Entry:
        fields = self.model_dump(exclude={"schema_version", "source", "figures", "tokens"})
        if self.source is not None:
            fields["sha256"] = hashlib.sha256(self.source.encode()).hexdigest()
        fields["figures"] = self.figures and Figures(**self.figures.model_dump())
        return Entry(**fields, tokens=self.tokens)


def import_trail(
    theirs: str | os.PathLike[str], into: Trail | str | os.PathLike[str]
) -> list[Entry]:
    """Append another system's trail to one of ours, all of its lines or none.

    The deltas, and whether a source is known to be right, are worked out from the lines before,
    those that `into` holds already among them.

    Args:
        theirs: JSON lines, see docs/reports.md. Empty lines are passed over.
        into: the trail; its file is made if need be.

    Returns:
        What was appended.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: lines that are refused, each by its number with the reason.
    """
    path = Path(theirs)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; a file of JSON lines is accepted")
    if not path.exists():
        raise FileNotFoundError(f"no file {path}")
    found: list[Entry] = []
    refused: list[str] = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(Line.model_validate_json(line).entry())
        except ValidationError as error:
            refused.append(f"line {number}: {_reason(error)}")
    if refused:
        more = [f"and {len(refused) - _MOST_SAID} more"] if len(refused) > _MOST_SAID else []
        said = "; ".join([*refused[:_MOST_SAID], *more])
        raise ValueError(f"{path}: nothing is imported: {said}")
    if not found:
        raise ValueError(f"{path} holds no line; one JSON object a line is accepted")
    book = into if isinstance(into, Trail) else Trail(into)
    entries = judged(book.read(), found)
    book.append(entries)
    return entries


def _reason(error: ValidationError) -> str:
    """The first fault: where, what is the matter, and the value."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return f"{where} is missing"
    if first["type"] == "json_invalid":
        return f"it is no JSON: {message.removeprefix('Invalid JSON: ')}"
    if first["type"] == "extra_forbidden":
        return f"{where!r} is no key of the schema"
    if not where:
        return message
    value = repr(first["input"])
    return f"{where} is {value if len(value) <= 80 else value[:76] + ' ...'}: {message}"
