"""The trail: what was called, what came of it, and what it changed, one JSON line a call."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from kernelbench_dist.harness._results import Frozen, Result, Source, SubmitResult
from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.timing._result import Kind

SCHEMA = "kernelbench_dist.trail/1"

# Tools that compare answers with the reference's, and what says that those were wrong. Other
# verdicts, such as TIMEOUT, may be the machine's doing.
_COMPARING = ("run_correctness", "submit_kernel", "fuzz")
_WRONG = (
    Verdict.RUNTIME_ERROR,
    Verdict.INCORRECT_SHAPE,
    Verdict.INCORRECT_DTYPE,
    Verdict.INCORRECT_VALUES,
    Verdict.NOT_FINITE,
    Verdict.NONDETERMINISTIC,
    Verdict.INPUT_MUTATED,
    Verdict.PARAMETERS_DIFFER,
)


class Tokens(Frozen):
    """What the model's text took."""

    prompt: int | None = Field(default=None, ge=0)
    completion: int | None = Field(default=None, ge=0)


class Figures(Frozen):
    """What submit_kernel measured: medians of one call, in us. `kind` is the one compared.

    `ratio` is the submission's time over the reference's in that kind, with its 99 % interval.
    """

    warm_us: float | None = None
    cold_us: float | None = None
    call_us: float | None = None
    kind: Kind | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    launches: int | None = None
    roofline_fraction: float | None = None

    @property
    def time_us(self) -> float | None:
        """Device time, or call time on a CPU."""
        times = {"warm": self.warm_us, "cold": self.cold_us, "call": self.call_us}
        return times[self.kind] if self.kind else None


class Delta(Frozen):
    """Against an earlier submit, that of `sha256`: `change` is -0.1 where a tenth was saved.

    `within_noise`: the intervals of the two ratios to the reference overlap.
    """

    change: float
    within_noise: bool
    sha256: str


class Entry(Frozen):
    """One call. `verdict` is None where nothing was judged; `reason` then says why, if it failed.

    `source_is_correct`: whether this text, up to and with this call, was found to be right for
    this problem and dtype (True), or ever wrong (False); None where nobody has compared its
    answers. The deltas are those of a submit that passed.
    """

    schema_version: Literal["kernelbench_dist.trail/1"] = Field(
        default="kernelbench_dist.trail/1", alias="schema"
    )
    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    time: str
    tool: str
    submission: str | None = None
    sha256: str | None = None
    problem: str | None = None
    device: str | None = None
    device_name: str | None = None
    dtype: str | None = None
    sizes: dict[str, int] | None = None
    backward: bool | None = None
    ranks: str | None = None
    """"virtual" or "gloo"; None where there is one"""
    verdict: Verdict | None = None
    reason: str = ""
    seconds: float | None
    """that the tool took; None in a trail from elsewhere that does not say"""
    model_seconds: float | None = Field(default=None, ge=0)
    """that the model took to ask for it"""
    figures: Figures | None = None
    delta_to_last: Delta | None = None
    delta_to_best: Delta | None = None
    source_is_correct: bool | None = None
    model: str | None = None
    tokens: Tokens | None = None

    @property
    def time_us(self) -> float | None:
        """Of a call of the submission, in the kind that is compared."""
        return self.figures.time_us if self.figures else None

    @property
    def counts(self) -> bool:
        """Whether it passed with a time, so that others are compared with it."""
        return self.verdict is Verdict.PASSED and bool(self.time_us)

    @property
    def conditions(self) -> tuple[Any, ...]:
        """What its time must share with another to be compared with it."""
        kind = self.figures.kind if self.figures else None
        where = (self.device, self.device_name, self.backward, self.ranks)
        return (self.problem, self.sizes, self.dtype, *where, kind)

    def changes(self) -> str:
        """The deltas in one line; "" where there are none."""
        pairs = (("last", self.delta_to_last), ("best", self.delta_to_best))
        said = [f"{_percent(d)} to the {name} that passed" for name, d in pairs if d]
        return f"time      {', '.join(said)}" if said else ""


class Trail:
    """A file of entries that several processes may append to.

    Each entry is written at once and through to the disk. What a killed writer left of a line is
    passed over.

    >>> import tempfile
    >>> trail = Trail(tempfile.mkdtemp() + "/trail.jsonl")
    >>> trail.add("prompt", problem="47", seconds=0.5).verdict is None
    True
    >>> [entry.tool for entry in trail.read()]
    ['prompt']
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Makes the folder if need be. ValueError: the path is a folder."""
        self.path = Path(path)
        if self.path.is_dir():
            raise ValueError(f"trail is {os.fspath(path)!r}, a folder; a file's path is accepted")
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def add(
        self,
        tool: str,
        result: Result | None = None,
        *,
        seconds: float,
        source: Source | None = None,
        problem: str | None = None,
        reason: str = "",
        model: str | None = None,
        model_seconds: float | None = None,
        tokens: Tokens | Mapping[str, int | None] | None = None,
    ) -> Entry:
        """Append one call and return its entry.

        Args:
            tool: its name.
            result: what it returned; None where that is no verdict, or where it failed.
            seconds: that the call took.
            source, reason: where there is no result that holds them.
            problem: its full name, by which entries are compared; None for the result's.
            model: the text in which a model asked for the call.
            model_seconds: that the model took for it.
            tokens: {"prompt": ..., "completion": ...}, that this text took.

        Raises:
            OSError: it could not be written whole.
        """
        fields: dict[str, Any] = {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "tool": _text(tool),
            "seconds": seconds,
            "problem": problem and _text(problem),
            "reason": _text(reason),
            "model": None if model is None else _text(model),
            "model_seconds": model_seconds,
            "tokens": None if tokens is None else Tokens.model_validate(tokens),
        }
        if result is not None:
            source = result.submission
            fields |= {"verdict": result.verdict, "reason": _text(result.reason)}
            fields |= {"problem": fields["problem"] or result.problem, **_conditions(result)}
            fields["figures"] = _figures(result)
        if source is not None:
            fields |= {"submission": _text(source.name), "sha256": source.sha256}
        (entry,) = judged(self.read(), [Entry(**fields)])
        self.append([entry])
        return entry

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries as they are, all or none. OSError: they could not be written whole."""
        lines = (entry.model_dump_json().encode() + b"\n" for entry in entries)
        self._append(b"".join(lines))

    def read(self) -> list[Entry]:
        """All entries, in order; none where there is no file.

        Raises:
            ValueError: a line is JSON, and no entry.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        return list(self._entries(data))

    def _entries(self, data: bytes) -> Iterator[Entry]:
        for number, line in enumerate(data.split(b"\n"), 1):
            try:
                value = json.loads(line)
            except ValueError:  # empty, or torn
                continue
            try:
                yield Entry.model_validate(value)
            except ValidationError as error:
                raise ValueError(
                    f"{self.path}:{number} is no entry of {SCHEMA}: {error.errors()[0]['msg']}"
                ) from None

    def _append(self, line: bytes) -> None:
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # So that no line of another writer is seen half written; closing gives it back.
            fcntl.flock(fd, fcntl.LOCK_EX)
            end = os.lseek(fd, 0, os.SEEK_END)
            if end and os.pread(fd, 1, end - 1) != b"\n":
                line = b"\n" + line  # the line before was torn, and is not to spoil this one
            # One write: with O_APPEND the lines of several writers never mix.
            written = os.write(fd, line)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes went to {self.path}")
            os.fsync(fd)
        finally:
            os.close(fd)

    def __str__(self) -> str:
        """A short table."""
        rows = [_HEADINGS, *(_row(i, e) for i, e in enumerate(self.read(), 1))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return "\n".join(lines)


def judged(before: Sequence[Entry], entries: Sequence[Entry]) -> list[Entry]:
    """The entries with what those before them say of each: its deltas, and whether it is right."""
    known = list(before)
    for entry in entries:
        says = {"source_is_correct": _known([*known, entry], entry), **_deltas(known, entry)}
        known.append(entry.model_copy(update=says))
    return known[len(before) :]


def _conditions(result: Result) -> dict[str, Any]:
    """What a time must share with another to be compared with it."""
    options = getattr(result, "options", None)
    if options is None:
        return {}
    fields = {"device": options.device, "dtype": options.dtype, "backward": options.backward}
    fields["ranks"] = options.ranks if options.world_size > 1 else None
    if isinstance(result, SubmitResult):
        fields["sizes"] = result.timing_sizes
        timing = result.timing
        fields["device_name"] = timing.environment.device_name if timing else None
    return fields


def _figures(result: Result) -> Figures | None:
    if not isinstance(result, SubmitResult):
        return None
    found: dict[str, Any] = {}
    if result.timing is not None:
        own, ratio = result.timing["submission"], result.timing.ratio("submission")
        found = {
            "warm_us": own.warm.median_us if own.warm else None,
            "cold_us": own.cold.median_us if own.cold else None,
            "call_us": own.call.median_us,
            "kind": ratio.kind,
            "ratio": ratio.ratio,
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
        }
    if result.launches is not None:
        found["launches"] = result.launches.kernels
    if result.speed_of_light is not None:
        found["roofline_fraction"] = result.speed_of_light.roofline_fraction
    return Figures(**found) if found else None


def _known(entries: Sequence[Entry], entry: Entry) -> bool | None:
    """Of the text that `entry` is about, by all entries on it. Once wrong is wrong."""
    judged = {
        e.verdict
        for e in entries
        if entry.sha256 is not None
        and e.tool in _COMPARING
        and (e.sha256, e.problem) == (entry.sha256, entry.problem)
        # The static check and the compiler know no dtype: to them any will do.
        and (entry.tool not in _COMPARING or e.dtype == entry.dtype)
    }
    if judged.intersection(_WRONG):
        return False
    return True if Verdict.PASSED in judged else None


def _deltas(before: Sequence[Entry], entry: Entry) -> dict[str, Delta | None]:
    if not entry.counts:
        return {}
    same = [e for e in before if e.counts and e.conditions == entry.conditions]
    if not same:
        return {}
    best = min(same, key=_time_us)
    return {"delta_to_last": _delta(entry, same[-1]), "delta_to_best": _delta(entry, best)}


def _time_us(entry: Entry) -> float:
    assert entry.time_us is not None
    return entry.time_us


def _delta(entry: Entry, other: Entry) -> Delta:
    a, b = entry.figures, other.figures
    assert a is not None
    assert b is not None
    ends = (a.ratio_low, a.ratio_high, b.ratio_low, b.ratio_high)
    low, high, its_low, its_high = (float("nan") if x is None else x for x in ends)
    apart = high < its_low or its_high < low  # never, where an end is not known
    return Delta(
        change=_time_us(entry) / _time_us(other) - 1,
        within_noise=not apart,
        sha256=other.sha256 or "",
    )


def _text(text: str) -> str:
    """The same without lone surrogates, which no file in UTF-8 can hold."""
    return text.encode("utf-8", "backslashreplace").decode()


_HEADINGS = (
    "#",
    "tool",
    "source",
    "verdict",
    "correct",
    "us/call",
    "of ref.",
    "to last",
    "to best",
)


def _row(number: int, e: Entry) -> tuple[str, ...]:
    figures = e.figures or Figures()
    kind = f" {figures.kind}" if figures.kind else ""
    return (
        str(number),
        e.tool if e.tool.isprintable() else ascii(e.tool),
        (e.sha256 or "-")[:8],
        str(e.verdict) if e.verdict else "error" if e.reason else "-",
        {True: "yes", False: "no", None: "-"}[e.source_is_correct],
        "-" if figures.time_us is None else f"{figures.time_us:.4g}{kind}",
        "-" if figures.ratio is None else f"{figures.ratio:.3f}",
        _percent(e.delta_to_last) if e.delta_to_last else "-",
        _percent(e.delta_to_best) if e.delta_to_best else "-",
    )


def _percent(delta: Delta) -> str:
    return f"{100 * delta.change:+.1f} %" + (" (within noise)" if delta.within_noise else "")
