"""Trails of other systems, by the schema of docs/reports.md."""

from __future__ import annotations

import hashlib
import os
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator
from typing_extensions import Self

from kernelbench_dist.harness._trail import Entry, Figures, Trail, judged

_MOST_SAID = 20

_WORKED_OUT = ("delta_to_last", "delta_to_best", "source_is_correct")

Positive = Annotated[float, Field(gt=0)]


class TheirFigures(Figures):
    """What is there must be possible, and what compares two times must be there whole."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    warm_us: Positive | None = None
    cold_us: Positive | None = None
    call_us: Positive | None = None
    ratio: Positive | None = None
    ratio_low: Positive | None = None
    ratio_high: Positive | None = None
    launches: Annotated[int, Field(ge=0)] | None = None
    roofline_fraction: Positive | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.kind is not None and self.time_us is None:
            raise ValueError(f"kind is {self.kind!r}, and {self.kind}_us is missing")
        ends = (self.ratio_low, self.ratio, self.ratio_high)
        given = [end for end in ends if end is not None]
        if given and (self.ratio is None or len(given) == 2):
            raise ValueError("ratio is given alone, or with both ratio_low and ratio_high")
        if given != sorted(given):
            raise ValueError(f"ratio_low, ratio, ratio_high are {ends}, and must ascend")
        return self


class Line(Entry):
    """One call. What follows from the other lines is accepted, and worked out anew."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    tool: Annotated[str, Field(min_length=1)]
    source: str | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    ranks: Literal["virtual", "gloo"] | None = None
    seconds: Annotated[float, Field(ge=0)] | None = None
    figures: TheirFigures | None = None

    @field_validator("time")
    @classmethod
    def _has_a_zone(cls, value: str) -> str:
        if datetime.fromisoformat(value.replace("Z", "+00:00")).tzinfo is None:
            raise ValueError("a time with its zone is accepted, as 2026-01-31T12:00:00+00:00")
        return value

    @model_validator(mode="after")
    def _source_fits(self) -> Self:
        if self.sha256 not in (None, self._hash()):
            raise ValueError(f"sha256 is {self.sha256}, and that of source is {self._hash()}")
        return self

    def _hash(self) -> str | None:
        if self.source is None:
            return self.sha256
        return hashlib.sha256(self.source.encode()).hexdigest()

    def entry(self) -> Entry:
        fields = self.model_dump(exclude={"source", *_WORKED_OUT}) | {"sha256": self._hash()}
        return Entry.model_validate(fields)


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
