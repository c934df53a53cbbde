"""What hardware counters say of one kernel, and which counters are asked for.

Percentages of a peak are of the whole device over the kernel's time ("elapsed"), but for occupancy
and the cache hit rates, whose own base is named. What was not collected is None, never 0.
"""

from __future__ import annotations

from pydantic import Field

from kernelbench_dist.harness._results import Frozen

SECTOR_BYTES = 32

# Sections that come with Nsight Compute and adapt to the chip.
SECTIONS = (
    "SpeedOfLight",
    "ComputeWorkloadAnalysis",
    "MemoryWorkloadAnalysis",
    "MemoryWorkloadAnalysis_Tables",
    "LaunchStats",
    "Occupancy",
    "SchedulerStats",
    "WarpStateStats",
)

ARITHMETIC_PIPES = ("alu", "fma", "fp16", "fp64", "tensor", "xu")
"""Pipes that compute; the others (load and store, texture, branches) move data or steer."""

# Floating-point operations: of one thread's instruction, by kind and dtype; an fma is two.
THREAD_OPS = {
    f"smsp__sass_thread_inst_executed_op_{letter}{op}_pred_on.sum": (dtype, 2 if op == "fma" else 1)
    for letter, dtype in (("h", "float16"), ("f", "float32"), ("d", "float64"))
    for op in ("add", "mul", "fma")
}
# Of the tensor cores, where a product and a sum are two already.
TENSOR_OPS = {
    f"sm__ops_path_tensor_src_{name}.sum": f"tensor {dtype}"
    for name, dtype in (
        ("bf16_dst_fp32", "bfloat16"),
        ("fp16_dst_fp16", "float16"),
        ("fp16_dst_fp32", "float16"),
        ("tf32_dst_fp32", "tf32"),
        ("fp64", "float64"),
        ("fp8_dst_fp32", "float8"),
        ("fp8_dst_fp16", "float8"),
        ("int8", "int8"),
    )
}
WIDTHS = {f"smsp__sass_inst_executed_op_memory_{bits}b.sum": bits for bits in (8, 16, 32, 64, 128)}


def _accesses() -> list[str]:
    names = []
    for space in ("global", "local"):
        for op in ("ld", "st"):
            names.append(f"l1tex__t_requests_pipe_lsu_mem_{space}_op_{op}.sum")
            names.append(f"l1tex__t_sectors_pipe_lsu_mem_{space}_op_{op}.sum")
    for op in ("ld", "st"):
        names.append(f"smsp__sass_data_bytes_mem_global_op_{op}.sum")
        names.append(f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{op}.ratio")
        names.append(f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum")
        names.append(f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum")
        names.append(f"smsp__sass_inst_executed_op_shared_{op}.sum")
    return names


METRICS = (
    "gpu__time_duration.sum",
    "sm__cycles_active.avg",
    "sm__cycles_elapsed.max",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sectors_op_read.sum",
    "lts__t_sectors_op_write.sum",
    "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    *(
        f"sm__inst_executed_pipe_{pipe}.avg.pct_of_peak_sustained_elapsed"
        for pipe in ("alu", "fma", "fp16", "fp64", "lsu", "xu")
    ),
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "smsp__thread_inst_executed_per_inst_executed.ratio",
    *_accesses(),
    *WIDTHS,
    *THREAD_OPS,
    *TENSOR_OPS,
)
"""Asked for beside the sections. A chip may lack some of them."""


class Stall(Frozen):
    """Why warps that could not issue waited: `percent` of all waiting of the kernel's warps."""

    reason: str
    percent: float


class Access(Frozen):
    """Loads or stores of one kernel in one memory space.

    A sector is 32 bytes. A request is one instruction of one warp; what it needs at least is
    the bytes that its lanes ask for over 32: 4 for 32 lanes of 4 bytes.
    """

    requests: int
    sectors: int
    bytes_asked: int | None
    """by all lanes together"""
    sectors_per_request: float | None
    ideal_sectors_per_request: float | None
    bytes_per_lane: float | None
    """of a warp whose 32 lanes all take part"""
    efficiency: float | None
    """bytes asked for over the bytes of the sectors; 1 also where lanes share bytes"""


class SharedAccess(Frozen):
    """Loads or stores in shared memory. A wavefront is what the banks serve at once."""

    requests: int | None
    wavefronts: int
    conflicts: int
    """wavefronts that bank conflicts add"""
    conflict_share: float | None
    """of the wavefronts"""


class KernelCounters(Frozen):
    """One launch of one kernel, by Nsight Compute."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    time_us: float | None = None
    """under the profiler: with cold caches and one kernel at a time"""

    sm_percent: float | None = None
    memory_percent: float | None = None
    """of the busiest part of the memory system"""
    dram_percent: float | None = None
    l2_percent: float | None = None
    l1_percent: float | None = None
    dram_read_bytes: int | None = None
    dram_write_bytes: int | None = None
    dram_read_gb_per_s: float | None = None
    dram_write_gb_per_s: float | None = None
    l2_read_bytes: int | None = None
    l2_write_bytes: int | None = None
    l2_read_gb_per_s: float | None = None
    l2_write_gb_per_s: float | None = None
    l1_hit_percent: float | None = None
    l2_hit_percent: float | None = None
    pipes_percent: dict[str, float] = Field(default_factory=dict)

    occupancy_theoretical_percent: float | None = None
    occupancy_achieved_percent: float | None = None
    """while at least one warp is on the multiprocessor"""
    occupancy_limiter: str | None = None
    """what allows the fewest blocks a multiprocessor; several are joined by "and\""""
    occupancy_limits_blocks: dict[str, int] = Field(default_factory=dict)
    waves: float | None = None
    """blocks over those that the device holds at once"""
    registers_per_thread: int | None = None
    shared_static_bytes: int | None = None
    shared_dynamic_bytes: int | None = None

    global_loads: Access | None = None
    global_stores: Access | None = None
    local_loads: Access | None = None
    local_stores: Access | None = None
    shared_loads: SharedAccess | None = None
    shared_stores: SharedAccess | None = None
    memory_instructions_by_bits: dict[int, int] = Field(default_factory=dict)
    """warps' instructions in all memory spaces, by bits a lane"""

    stalls: tuple[Stall, ...] = ()
    """all reasons, the largest first; they add up to 100"""
    active_warps: float | None = None
    """a scheduler, in a cycle in which it has any"""
    eligible_warps: float | None = None
    """of these, those that could issue"""
    issue_percent: float | None = None
    """of the cycles in which a scheduler has a warp, those in which it issues"""
    threads_per_instruction: float | None = None
    """of the 32 of a warp"""

    flops_by_dtype: dict[str, int] = Field(default_factory=dict)
    """operations that were executed; "tensor ..." on the tensor cores"""

    @property
    def top_stalls(self) -> tuple[Stall, ...]:
        return self.stalls[:5]

    @property
    def flops(self) -> int | None:
        """Floating-point operations in all; None where none were counted."""
        counted = [n for dtype, n in self.flops_by_dtype.items() if not dtype.endswith("int8")]
        return sum(counted) if self.flops_by_dtype else None

    @property
    def dram_bytes(self) -> int | None:
        if self.dram_read_bytes is None or self.dram_write_bytes is None:
            return None
        return self.dram_read_bytes + self.dram_write_bytes

    @property
    def intensity(self) -> float | None:
        """FLOP a byte of DRAM that moved; None where either was not counted, or no byte moved."""
        if self.flops is None or not self.dram_bytes:
            return None
        return self.flops / self.dram_bytes

    @property
    def memory_unit(self) -> tuple[str, float] | None:
        """The busiest part of the memory system, and its percent of peak."""
        parts = {"DRAM": self.dram_percent, "L2": self.l2_percent, "L1": self.l1_percent}
        known = {name: value for name, value in parts.items() if value is not None}
        if not known:
            return None if self.memory_percent is None else ("memory", self.memory_percent)
        best = max(known, key=lambda name: known[name])
        return best, known[best]

    @property
    def pipe(self) -> tuple[str, float] | None:
        """The busiest pipe that computes, and its percent of peak."""
        known = {n: v for n, v in self.pipes_percent.items() if n in ARITHMETIC_PIPES}
        if not known:
            return None
        best = max(known, key=lambda name: known[name])
        return best, known[best]

    @property
    def speed_of_light_percent(self) -> float | None:
        """The larger of what the multiprocessors and the memory system reach of their peaks."""
        known = [p for p in (self.sm_percent, self.memory_percent) if p is not None]
        return max(known, default=None)
