"""What the judge returns: frozen models that print as reports and convert to JSON and back.

A field's name ends in its unit. What was not measured is None, never 0. Nothing is rounded.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import Self

from kernelbench_dist.harness._ranks import RanksKind
from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.timing import BenchResult

Kind = Literal["cuda", "cpp", "triton", "cute", "torch"]
Severity = Literal["error", "warning", "note"]


class Frozen(BaseModel):
    """A part of a result: its fields cannot be set, nor others be given."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="strings", protected_namespaces=()
    )


class Source(Frozen):
    """A submission: `name` is its path, or "<source>" where it came as text."""

    name: str
    sha256: str
    kind: Kind
    kind_is_declared: bool


class Options(Frozen):
    """How it was judged. `sizes` are the problem's own where empty.

    ranks: of a problem of several, "virtual" (threads of one process) or "gloo" (processes).
    """

    device: str
    dtype: str | None
    sizes: tuple[dict[str, int], ...]
    trials: int
    seed: int
    backward: bool
    world_size: int = 1
    ranks: RanksKind = "virtual"

    @property
    def on_virtual_ranks(self) -> bool:
        return self.world_size > 1 and self.ranks == "virtual"


class Finding(Frozen):
    """One thing that the static check found; `code` is the line of source."""

    rule: str
    severity: Severity
    line: int
    column: int
    message: str
    code: str


class Diagnostic(Frozen):
    """One message of a compiler; `hint` says what usually causes it."""

    file: str
    line: int | None
    column: int | None
    severity: Severity
    message: str
    hint: str | None = None


class KernelResources(Frozen):
    """What the assembler reports of one kernel on one architecture."""

    name: str
    architecture: str
    registers: int
    shared_bytes: int
    constant_bytes: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


class Build(Frozen):
    """One extension that the submission builds. `seconds` is None where it came from the cache."""

    name: str
    key: str
    from_cache: bool
    seconds: float | None
    succeeded: bool
    diagnostics: tuple[Diagnostic, ...]
    kernels: tuple[KernelResources, ...]
    log: str


class ErrorMap(Frozen):
    """Where an output is wrong, seen as `rows` x `columns`: all dims but the last make the rows.

    `worst` holds the largest error of each tile of `tile_rows` x `tile_columns` elements, as a
    share of what was allowed for that element: up to 1 is right. As it is there to be looked at, a
    share has three digits.
    """

    rows: int
    columns: int
    tile_rows: int
    tile_columns: int
    worst: tuple[tuple[float, ...], ...]


class Output(Frozen):
    """One output, or gradient, compared with the float64 oracle.

    `worst_*` belong to the element whose error is largest in proportion to its bound.
    """

    name: str
    rank: int
    shape: tuple[int, ...]
    dtype: str
    elements: int
    mismatches: int | None = None
    max_abs_error: float | None = None
    mean_abs_error: float | None = None
    max_rel_error: float | None = None
    worst_index: tuple[int, ...] | None = None
    worst_result: float | int | str | None = None
    worst_expected: float | int | str | None = None
    worst_error: float | str | None = None
    worst_bound: float | str | None = None
    worst_ulp: float | str | None = None
    error_map: ErrorMap | None = None
    """kept of the worst output of the last trial of a judgement"""

    @property
    def share_of_bound(self) -> float | None:
        """The worst element's error over its bound: 1 or less is right. None: not compared."""
        if self.worst_error is None or self.worst_bound is None:
            return None
        error, bound = float(self.worst_error), float(self.worst_bound)
        if error == 0 or math.isnan(error):
            return 0.0 if error == 0 else math.inf
        return error / bound if bound else math.inf


class Trial(Frozen):
    """One draw of the inputs: `seed` and `sizes` are what replays it."""

    seed: int
    sizes: dict[str, int]
    shapes: tuple[tuple[int, ...], ...]
    verdict: Verdict
    reason: str
    bitwise_equal: bool | None = None
    """whether two runs on the same inputs gave the same bits"""
    outputs: tuple[Output, ...] = ()

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.PASSED

    def without_maps(self) -> Trial:
        """The same without error maps, which are large."""
        outputs = tuple(o.model_copy(update={"error_map": None}) for o in self.outputs)
        return self.model_copy(update={"outputs": outputs})


class Memory(Frozen):
    """Peak memory of one call above what was allocated before it, inputs and parameters."""

    peak_above_inputs_bytes: int
    source: str


class Launches(Frozen):
    """What one call does on the device, from the profiler."""

    kernels: int
    copies: int
    fills: int
    names: tuple[str, ...]
    library_share: float
    """of the kernels' time, that of kernels which are not the submission's own"""


class SpeedOfLight(Frozen):
    """The problem's cost over the device's peaks, against the time that was measured."""

    bytes_moved: int
    flops: int
    cost_source: str
    """"problem" where the problem declares its cost, else "analysis" of the reference"""
    peak_bytes_per_s: float
    peak_flops_per_s: float | None
    peak_source: str
    floor_us: float
    """the least time that the peaks allow"""
    time_us: float
    time_kind: str
    roofline_fraction: float
    """floor_us / time_us"""
    time_class: str
    """"launch-bound", "memory-bound", "compute-bound" or "latency-bound\""""


class Result(Frozen):
    """What every tool returns. `str(result)` is a report, `result.passed` the short answer."""

    tool: ClassVar[str]

    schema_version: Literal["kernelbench_dist.harness/1"] = Field(
        default="kernelbench_dist.harness/1", alias="schema"
    )
    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    verdict: Verdict
    reason: str
    """what is the matter with this submission, in one sentence with its values"""
    detail: str = ""
    """the traceback, or the end of the output, that belongs to the reason"""
    submission: Source | None = None
    problem: str | None = None
    started_at: str
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.PASSED

    @property
    def advice(self) -> str:
        return self.verdict.advice

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the schema's version under "schema" and the tool under "tool"."""
        import json

        # By way of text: model_dump leaves infinities as they are, which JSON has not.
        return {"tool": self.tool, **json.loads(self.model_dump_json(by_alias=True))}

    def to_json(self, indent: int | None = None) -> str:
        """JSON text; floats keep every bit. What was not measured is null."""
        import json

        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`. ValueError where the schema or the tool is another one."""
        fields = dict(data)
        if (tool := fields.pop("tool", cls.tool)) != cls.tool:
            raise ValueError(f"tool is {tool!r}, and {cls.tool!r} is accepted")
        return cls.model_validate(fields)

    def __str__(self) -> str:
        from kernelbench_dist.report import text

        return text(self)


class StaticResult(Result):
    """`findings` are in the order of lines; one "error" among them makes it CHEATING."""

    tool = "static_check"
    findings: tuple[Finding, ...] = ()


class ProblemResult(Result):
    """`trivial_answers` says of each that applies whether it passes for the problem."""

    tool = "check_problem"
    options: Options | None = None
    trivial_answers: dict[str, bool] = {}


class CompileResult(Result):
    """`builds` are the extensions that loading the file builds, in that order."""

    tool = "compile_kernel"
    builds: tuple[Build, ...] = ()


class CorrectnessResult(Result):
    """`trials` end with the first that failed."""

    tool = "run_correctness"
    options: Options | None = None
    builds: tuple[Build, ...] = ()
    trials: tuple[Trial, ...] = ()
    replay: str | None = None
    """the command that runs the failed trial again"""


class SubmitResult(Result):
    """All that is known of a submission. A part that was not reached is None.

    `timing` compares "submission" with "reference". `waited_seconds` is the time spent waiting
    for other measurements on the device, which is in no other figure. `timing_of` says whose time
    it is where the problem has several ranks: it is never that of as many devices.
    """

    tool = "submit_kernel"
    options: Options | None = None
    static: StaticResult | None = None
    builds: tuple[Build, ...] = ()
    trials: tuple[Trial, ...] = ()
    replay: str | None = None
    timing: BenchResult | None = None
    timing_of: str | None = None
    timing_sizes: dict[str, int] | None = None
    waited_seconds: float | None = None
    memory: Memory | None = None
    reference_memory: Memory | None = None
    launches: Launches | None = None
    reference_launches: Launches | None = None
    fusion_ratio: float | None = None
    """the reference's kernels a call over the submission's"""
    speed_of_light: SpeedOfLight | None = None
