"""What profiling returns: frozen models, as all results of the judge."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernelbench_dist.harness._results import Build, Frozen, Options, Result, Trial
from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.harness.profile._counters import KernelCounters

TimeClass = Literal["launch-bound", "latency-bound", "memory-bound", "compute-bound"]


class Activity(Frozen):
    """Launches that are alike, of one call, by torch.profiler.

    kind: "kernel", "copy" or "fill"; the last two have bytes in place of a grid.
    """

    kind: Literal["kernel", "copy", "fill"]
    name: str
    launches_per_call: float
    us_per_call: float
    """of all these launches together"""
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers_per_thread: int | None = None
    shared_bytes: int | None = None
    bytes: int | None = None
    """of one copy or fill"""
    is_own: bool | None = None
    """whether it is of an extension that the submission builds, or a function of its file"""


class Operator(Frozen):
    """One of torch's operators, of one call, by torch.profiler: time on the CPU.

    self_us: without the operators that it calls.
    """

    name: str
    calls_per_call: float
    self_us_per_call: float
    total_us_per_call: float


class Times(Frozen):
    """Medians of one call. Device time is that of a CUDA graph's replay, or as `method` says.

    empty_*: the empty kernel (on a CPU the empty function) by the same clock.
    """

    method: Literal["graph", "events", "wall"]
    warm_us: float | None = None
    cold_us: float | None = None
    call_us: float | None = None
    empty_warm_us: float | None = None
    empty_cold_us: float | None = None
    empty_call_us: float | None = None


class Analysis(Frozen):
    """What the problem costs at least, whatever the kernel does.

    cost_source: "problem" where its file declares it, else "analysis" of the reference.
    """

    bytes_moved: int
    flops: int
    cost_source: str
    intensity: float | None
    """FLOP a byte"""
    ridge_point: float | None = None
    """the intensity at which computing takes as long as moving"""
    peak_bytes_per_s: float | None = None
    peak_flops_per_s: float | None = None
    peak_source: str | None = None


class CounterLight(Frozen):
    """Speed of light by counters: how near the busiest unit is to its own peak.

    `percent` is of all kernels, each weighted by its time. A kernel that does needless work can
    have much of it.
    """

    percent: float
    sm_percent: float | None
    memory_percent: float | None


class RooflineLight(Frozen):
    """Speed of light by the roofline: the least time of the problem over the time it took.

    least_us: that of its bytes or its FLOPs at the peaks, or the empty kernel where that is more.
    """

    fraction: float
    least_us: float
    limit: Literal["memory", "compute", "launch"]
    time_us: float
    time_kind: Literal["warm", "cold"]
    empty_us: float


class Class(Frozen):
    """What holds a kernel back, and `because`: the figures that say so."""

    name: TimeClass
    because: str
    source: Literal["timer", "counters", "analysis"]


class Hint(Frozen):
    """One rule that a measured value has tripped. kernel: None where it is about the whole call."""

    rule: str
    what: str
    kernel: str | None
    value: float
    threshold: float
    unit: str
    advice: str


class KernelProfile(Frozen):
    """Counters of one launch, and its class by them."""

    counters: KernelCounters
    time_class: Class | None


class ProfileResult(Result):
    """Where the time of one call goes. What was not measured is None or empty; a field says why.

    The verdict is that of a trial, as in `run_correctness`: figures of a wrong kernel are given,
    too, with a note that says so.
    """

    tool = "profile_kernel"
    options: Options | None = None
    builds: tuple[Build, ...] = ()
    trial: Trial | None = None
    sizes: dict[str, int] | None = None
    waited_seconds: float | None = None
    times: Times | None = None
    activity: tuple[Activity, ...] = ()
    activity_absent: str | None = None
    operators: tuple[Operator, ...] = ()
    """the first by their own time"""
    kernels: tuple[KernelProfile, ...] = ()
    """each launch of one call, in order, by counters"""
    counters_source: str | None = None
    counters_absent: str | None = None
    analysis: Analysis | None = None
    counter_light: CounterLight | None = None
    roofline_light: RooflineLight | None = None
    time_class: Class | None = None
    hints: tuple[Hint, ...] = ()

    @property
    def is_known_correct(self) -> bool:
        """Whether the answers of this very source were compared, and right."""
        return self.trial is not None and self.trial.passed

    @property
    def launches_per_call(self) -> float | None:
        """Kernels in one call; None where no device activity was recorded."""
        if not self.activity:
            return None
        return sum(a.launches_per_call for a in self.activity if a.kind == "kernel")


class SanitizerFinding(Frozen):
    """One report of compute-sanitizer: what, in which kernel, and the lines that it printed."""

    what: str
    kernel: str | None
    detail: str


class SanitizerCheck(Frozen):
    """One of compute-sanitizer's tools. `errors` is None where it gave no answer.

    verdict: PASSED, ENVIRONMENT_ERROR where it could not run, or what its findings amount to.
    """

    tool: str
    verdict: Verdict
    reason: str
    errors: int | None
    findings: tuple[SanitizerFinding, ...] = ()


class SanitizeResult(Result):
    """The verdict is the first that is not PASSED among `checks`, what the machine lacks last."""

    tool = "sanitize"
    options: Options | None = None
    builds: tuple[Build, ...] = ()
    sizes: dict[str, int] | None = None
    checks: tuple[SanitizerCheck, ...] = ()


class KernelCode(Frozen):
    """Machine code of one kernel for one architecture.

    *_by_bits: instructions in the code, by bits a lane; how often each runs is not known.
    """

    name: str
    architecture: str
    instructions: int
    registers: int | None
    stack_bytes: int | None
    shared_bytes: int | None
    spill_store_bytes: int | None
    spill_load_bytes: int | None
    """of spills, as the assembler said when it was built; None where that is not known"""
    local_stores: int
    local_loads: int
    """instructions on local memory: spills, and arrays that are indexed at run time"""
    global_loads_by_bits: dict[int, int]
    global_stores_by_bits: dict[int, int]
    shared_loads_by_bits: dict[int, int]
    shared_stores_by_bits: dict[int, int]
    async_copies: int
    """global to shared, without registers: LDGSTS and TMA"""
    tensor_instructions: int
    barriers: int


class DisassembleResult(Result):
    """`kernels` are those of all extensions that the submission builds."""

    tool = "disassemble"
    builds: tuple[Build, ...] = ()
    kernels: tuple[KernelCode, ...] = ()
    disassembler: str | None = None


class MeasuredRate(Frozen):
    """One rate as measured on the device. `samples` of the time, in us, are never rounded."""

    name: str
    rate: float
    unit: Literal["B/s", "FLOP/s"]
    how: str


class GpuSpecs(Result):
    """What a device can do: by its datasheet, and as measured on it in this session."""

    tool = "get_gpu_specs"
    device: str
    device_name: str | None = None
    compute_capability: str | None = None
    multiprocessors: int | None = None
    memory_bytes: int | None = None
    l2_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    torch: str = ""
    clock_mhz: int | None = None
    datasheet: str | None = None
    """whose; None where the GPU is not in the table"""
    datasheet_bytes_per_s: float | None = None
    datasheet_flops_per_s: dict[str, float] = Field(default_factory=dict)
    measured: tuple[MeasuredRate, ...] = ()
    empty_kernel_us: float | None = None
    measured_at: str | None = None
    ridge_points: dict[str, float] = Field(default_factory=dict)
    """FLOP a byte by dtype, from the measured rates"""
