"""What `bench` returns: frozen dataclasses that print as tables and convert to JSON.

Every time is in microseconds a call, and its field's name ends in `_us`. Nothing is rounded in
storage. What was not measured is None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from kernelbench_dist.timing._stats import Verdict, median_interval, ratio_interval, verdict

SCHEMA = "kernelbench_dist.timing/1"

Kind = Literal["warm", "cold", "call"]
Method = Literal["graph", "events", "wall"]

KINDS: tuple[Kind, ...] = ("warm", "cold", "call")


@dataclass(frozen=True)
class Timing:
    """The time of one call, from `n` samples; each sample is a mean over `calls` calls.

    `median_low_us` and `median_high_us` are the 99 % interval on the median. `over_empty_us` is
    the median less the median of the empty kernel (on a CPU, the empty function) measured beside
    it in the same way; it is None for the empty kernel itself. `samples_us` is in the order of
    the rounds.
    """

    calls: int
    n: int
    min_us: float
    median_us: float
    median_low_us: float
    median_high_us: float
    mean_us: float
    std_us: float
    p10_us: float
    p95_us: float
    over_empty_us: float | None
    samples_us: tuple[float, ...]

    @classmethod
    def of(cls, samples_us: Sequence[float], calls: int, empty: Timing | None = None) -> Timing:
        """Summarise samples: the standard deviation has n - 1, percentiles interpolate linearly."""
        a = np.asarray(samples_us, dtype=np.float64)
        low, high = median_interval(samples_us)
        p10, median, p95 = (float(p) for p in np.percentile(a, [10, 50, 95]))
        return cls(
            calls=calls,
            n=a.size,
            min_us=float(a.min()),
            median_us=median,
            median_low_us=low,
            median_high_us=high,
            mean_us=float(a.mean()),
            std_us=float(a.std(ddof=1)),
            p10_us=p10,
            p95_us=p95,
            over_empty_us=None if empty is None else median - empty.median_us,
            samples_us=tuple(float(s) for s in samples_us),
        )


@dataclass(frozen=True)
class Candidate:
    """The times of one function. `warm` and `cold` are device times, None where not measured.

    `launch_bound` says that the device time is under three empty kernels; None on a CPU.
    """

    name: str
    warm: Timing | None
    cold: Timing | None
    call: Timing
    launch_bound: bool | None = None

    def timing(self, kind: Kind) -> Timing | None:
        """The timing of one kind: "warm", "cold" or "call"."""
        return {"warm": self.warm, "cold": self.cold, "call": self.call}[kind]


@dataclass(frozen=True)
class Ratio:
    """The median time of `name` over that of `baseline`: under 1 is faster.

    `low` and `high` are the 99 % bootstrap interval. `note` says what must be known before the
    verdict is repeated, and is None where there is nothing to say.
    """

    name: str
    baseline: str
    kind: Kind
    ratio: float
    low: float
    high: float
    verdict: Verdict
    note: str | None = None


@dataclass(frozen=True)
class Environment:
    """Where and when it was measured. `clock_mhz` is the SM clock seen after the last round."""

    started_at: str
    device: str
    device_name: str
    driver: str | None
    cuda: str | None
    torch: str
    python: str
    threads: int
    clock_mhz: int | None
    l2_bytes: int | None


@dataclass(frozen=True)
class BenchResult:
    """The result of `bench`: `result["name"]` is a Candidate, `result.ratio("name")` a Ratio.

    `method` is how device time was taken, the same for every candidate so that their ratios mean
    something: "graph", "events" or "wall"; `reason` says why it is not "graph". On a CPU only call
    time exists, and `method` is "wall". `empty` holds the empty kernel (function), timed likewise.
    """

    environment: Environment
    method: Method
    reason: str | None
    rounds: int
    seed: int
    baseline: str
    candidates: tuple[Candidate, ...]
    empty: Candidate
    ratios: tuple[Ratio, ...]

    @property
    def kind(self) -> Kind:
        """The kind that verdicts are drawn from by default: warm, else cold, else call."""
        return next(k for k in KINDS if self.empty.timing(k) is not None)

    def __getitem__(self, name: str) -> Candidate:
        for candidate in self.candidates:
            if candidate.name == name:
                return candidate
        raise KeyError(f"no candidate {name!r}; there are {[c.name for c in self.candidates]}")

    def ratio(self, name: str, kind: Kind | None = None) -> Ratio:
        """The ratio of `name` to the baseline in device time (call time on a CPU), or in `kind`.

        Raises:
            KeyError: no such candidate, the baseline itself, or a kind that was not measured.
        """
        self[name]
        kind = kind or self.kind
        for ratio in self.ratios:
            if (ratio.name, ratio.kind) == (name, kind):
                return ratio
        if name == self.baseline:
            raise KeyError(f"{name!r} is the baseline")
        raise KeyError(f"{kind!r} was not measured; there are {self._measured()}")

    def _measured(self) -> list[Kind]:
        return [k for k in KINDS if self.empty.timing(k) is not None]

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of plain values, with the schema's version under "schema"."""
        return {"schema": SCHEMA, **asdict(self)}

    def to_json(self, indent: int | None = None) -> str:
        """JSON text; floats keep every bit. What was not measured is null."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BenchResult:
        """The inverse of `to_dict`. ValueError if the schema is another one."""
        if data.get("schema") != SCHEMA:
            raise ValueError(f"schema is {data.get('schema')!r}, and {SCHEMA!r} is accepted")
        fields = {key: value for key, value in data.items() if key != "schema"}
        fields["environment"] = Environment(**data["environment"])
        fields["candidates"] = tuple(_candidate(c) for c in data["candidates"])
        fields["empty"] = _candidate(data["empty"])
        fields["ratios"] = tuple(Ratio(**r) for r in data["ratios"])
        return cls(**fields)

    @classmethod
    def from_json(cls, text: str) -> BenchResult:
        """The inverse of `to_json`. ValueError if the schema is another one."""
        return cls.from_dict(json.loads(text))

    def __str__(self) -> str:
        from kernelbench_dist.timing._table import render

        return render(self)

    def __rich_console__(self, console: Any, options: Any) -> Any:
        from kernelbench_dist.timing._table import renderables

        return renderables(self)


def _candidate(data: dict[str, Any]) -> Candidate:
    fields = dict(data)
    for kind in KINDS:
        fields[kind] = _timing(data[kind])
    return Candidate(**fields)


def _timing(data: dict[str, Any] | None) -> Timing | None:
    if data is None:
        return None
    fields = dict(data)
    fields["samples_us"] = tuple(data["samples_us"])
    return Timing(**fields)


Samples: TypeAlias = tuple[int, Sequence[float]]
"""how many calls each sample is a mean of, and the samples in us, in the order of the rounds"""


def assemble(
    measured: Sequence[tuple[str, Mapping[Kind, Samples]]],
    floor: tuple[str, Mapping[Kind, Samples]],
    *,
    environment: Environment,
    method: Method,
    reason: str | None,
    rounds: int,
    seed: int,
    baseline: str,
) -> BenchResult:
    """The result of a run: candidates by name, and the floor, each with its samples by kind."""

    def candidate(name: str, kinds: Mapping[Kind, Samples], empty: Candidate | None) -> Candidate:
        timings = {
            kind: Timing.of(us, calls, None if empty is None else empty.timing(kind))
            for kind, (calls, us) in kinds.items()
        }
        return Candidate(name, timings.get("warm"), timings.get("cold"), timings["call"])

    empty = candidate(*floor, None)
    timed = [candidate(name, kinds, empty) for name, kinds in measured]
    on_gpu = environment.device.startswith("cuda")
    if on_gpu:
        timed = [with_launch_bound(c, empty) for c in timed]
    return BenchResult(
        environment=environment,
        method=method,
        reason=reason,
        rounds=rounds,
        seed=seed,
        baseline=baseline,
        candidates=tuple(timed),
        empty=empty,
        ratios=compare(timed, baseline, seed, method, on_gpu=on_gpu),
    )


def compare(
    candidates: Sequence[Candidate], baseline: str, seed: int, method: Method, *, on_gpu: bool
) -> tuple[Ratio, ...]:
    """Every candidate against the baseline, in every kind that was measured."""
    base = next(c for c in candidates if c.name == baseline)
    ratios = []
    for candidate in candidates:
        for kind in KINDS:
            times, reference = candidate.timing(kind), base.timing(kind)
            if candidate is base or times is None or reference is None:
                continue
            ratio, low, high = ratio_interval(times.samples_us, reference.samples_us, seed)
            # Only a graph keeps the host's work out of a figure.
            host_is_in_it = on_gpu and (kind == "call" or method != "graph")
            note = None
            if host_is_in_it and (candidate.launch_bound or base.launch_bound):
                note = "launch-bound: the cost of launching on the host is compared, not kernels"
            elif host_is_in_it and candidate.launch_bound is None:
                note = "call time alone: whether it is launch-bound was not measured"
            ratios.append(
                Ratio(candidate.name, baseline, kind, ratio, low, high, verdict(low, high), note)
            )
    return tuple(ratios)


def with_launch_bound(candidate: Candidate, empty: Candidate) -> Candidate:
    """The candidate with `launch_bound` set from its device time, warm if measured, else cold."""
    for times, floor in ((candidate.warm, empty.warm), (candidate.cold, empty.cold)):
        if times is not None and floor is not None:
            return replace(candidate, launch_bound=times.median_us < 3 * floor.median_us)
    return candidate
