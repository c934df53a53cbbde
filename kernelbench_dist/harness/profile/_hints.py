"""What to try: rules in one table, each tripped by a value that was measured, which it names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernelbench_dist.harness.profile._classes import BUSY_PERCENT
from kernelbench_dist.harness.profile._counters import Access, KernelCounters, SharedAccess
from kernelbench_dist.harness.profile._results import Hint, ProfileResult

_NEEDED = 0.01  # loads or stores that are under a hundredth of all sectors are not worth a hint


@dataclass(frozen=True)
class Rule:
    """A rule about one kernel (by its counters) or about the whole call.

    It is tripped where `value` is at least, or at most, the threshold. A value of None says
    nothing: it was not measured, or the rule does not apply. `what` goes on where a value and its
    unit end.
    """

    name: str
    what: str
    unit: str
    advice: str
    at_least: float | None = None
    at_most: float | None = None
    of_kernel: Callable[[KernelCounters], float | None] | None = None
    of_call: Callable[[ProfileResult], float | None] | None = None

    @property
    def threshold(self) -> float:
        return self.at_least if self.at_least is not None else self.at_most or 0.0

    def trips(self, value: float | None) -> bool:
        if value is None:
            return False
        return value >= self.threshold if self.at_least is not None else value <= self.threshold

    def hint(self, value: float, kernel: str | None) -> Hint:
        return Hint(
            rule=self.name,
            what=self.what,
            kernel=kernel,
            value=value,
            threshold=self.threshold,
            unit=self.unit,
            advice=self.advice,
        )


def hints(result: ProfileResult) -> tuple[Hint, ...]:
    """All that are tripped: those about the call first, then by kernel in order, each once."""
    found: dict[tuple[str, str | None], Hint] = {}
    for rule in RULES:
        if rule.of_call is not None:
            value = rule.of_call(result)
            if value is not None and rule.trips(value):
                found[rule.name, None] = rule.hint(value, None)
    for kernel in result.kernels:
        for rule in RULES:
            if rule.of_kernel is None:
                continue
            value = rule.of_kernel(kernel.counters)
            if value is not None and rule.trips(value):
                name = kernel.counters.name
                found.setdefault((rule.name, name), rule.hint(value, name))
    return tuple(found.values())


def _sectors(kernel: KernelCounters) -> int:
    parts = (kernel.global_loads, kernel.global_stores, kernel.local_loads, kernel.local_stores)
    return sum(part.sectors for part in parts if part is not None)


def _efficiency(
    which: Callable[[KernelCounters], Access | None],
) -> Callable[[KernelCounters], float | None]:
    def value(kernel: KernelCounters) -> float | None:
        access = which(kernel)
        if access is None or access.efficiency is None:
            return None
        # A lone lane's access needs a whole sector, and there is nothing to coalesce it with.
        one_lane = access.sectors_per_request is not None and access.sectors_per_request <= 1
        if one_lane or access.sectors < _NEEDED * _sectors(kernel):
            return None
        return 100 * access.efficiency

    return value


def _conflicts(kernel: KernelCounters) -> float | None:
    parts: Sequence[SharedAccess] = [
        part for part in (kernel.shared_loads, kernel.shared_stores) if part is not None
    ]
    wavefronts = sum(part.wavefronts for part in parts)
    return 100 * sum(part.conflicts for part in parts) / wavefronts if wavefronts else None


def _local(kernel: KernelCounters) -> float | None:
    parts = [p for p in (kernel.local_loads, kernel.local_stores) if p is not None]
    total = _sectors(kernel)
    return 100 * sum(p.sectors for p in parts) / total if parts and total else None


def _low_occupancy(kernel: KernelCounters) -> float | None:
    """Where schedulers have too little to choose from."""
    if kernel.eligible_warps is None or kernel.eligible_warps >= 1:
        return None
    return kernel.occupancy_theoretical_percent


def _imbalance(kernel: KernelCounters) -> float | None:
    achieved, possible = kernel.occupancy_achieved_percent, kernel.occupancy_theoretical_percent
    if achieved is None or not possible or kernel.waves is None or kernel.waves < 1:
        return None
    return 100 * achieved / possible


def _tail(kernel: KernelCounters) -> float | None:
    if kernel.waves is None or kernel.waves <= 1:
        return None
    return 100 * (1 - kernel.waves / math.ceil(kernel.waves))


def _stall(*reasons: str) -> Callable[[KernelCounters], float | None]:
    def value(kernel: KernelCounters) -> float | None:
        if not kernel.stalls:
            return None
        return sum(stall.percent for stall in kernel.stalls if stall.reason in reasons)

    return value


def _waiting_for_memory(kernel: KernelCounters) -> float | None:
    """Where the memory itself is not busy: then more of it can be asked for at once."""
    if kernel.memory_unit is None or kernel.memory_unit[1] > BUSY_PERCENT:
        return None
    return _stall("long_scoreboard")(kernel)


def _lane_bytes(kernel: KernelCounters) -> float | None:
    """Of loads that are coalesced, in a kernel that waits for them."""
    access = kernel.global_loads
    waits = _stall("long_scoreboard", "lg_throttle")(kernel)
    if access is None or access.efficiency is None or access.efficiency < 0.9:
        return None
    return access.bytes_per_lane if waits is not None and waits >= 30 else None


def _traffic(result: ProfileResult) -> float | None:
    """DRAM bytes over those that must move, where they do not fit the L2 many times over."""
    moved = [kernel.counters.dram_bytes for kernel in result.kernels]
    if not moved or None in moved or result.analysis is None or result.analysis.bytes_moved < 1e7:
        return None
    return sum(n for n in moved if n is not None) / result.analysis.bytes_moved


def _copies(result: ProfileResult) -> float | None:
    return sum(a.launches_per_call for a in result.activity if a.kind == "copy")


RULES = (
    Rule(
        "several launches",
        "in one call, which is launch-bound",
        "kernels",
        "fuse them into one, or replay the call as a CUDA graph",
        at_least=2,
        of_call=lambda result: (
            result.launches_per_call
            if result.time_class is not None and result.time_class.name == "launch-bound"
            else None
        ),
    ),
    Rule(
        "copies",
        "in one call",
        "copies",
        "read the input where it lies, by its strides, in place of contiguous(), cat or to()",
        at_least=1,
        of_call=_copies,
    ),
    Rule(
        "bytes move twice",
        "the bytes that must move were moved by DRAM",
        "times",
        "fuse what writes a tensor with what reads it, or tile so that a block's data stays in L2",
        at_least=1.5,
        of_call=_traffic,
    ),
    Rule(
        "uncoalesced loads",
        "of the bytes in the sectors that global loads touch were asked for",
        "%",
        "let neighbouring lanes read neighbouring addresses; transpose through shared memory",
        at_most=50,
        of_kernel=_efficiency(lambda kernel: kernel.global_loads),
    ),
    Rule(
        "uncoalesced stores",
        "of the bytes in the sectors that global stores touch were written",
        "%",
        "let neighbouring lanes write neighbouring addresses; transpose through shared memory",
        at_most=50,
        of_kernel=_efficiency(lambda kernel: kernel.global_stores),
    ),
    Rule(
        "bank conflicts",
        "of the wavefronts in shared memory are added by bank conflicts",
        "%",
        "pad rows to an odd number of 4-byte words, or swizzle the columns by the row",
        at_least=25,
        of_kernel=_conflicts,
    ),
    Rule(
        "local memory",
        "of the sectors of loads and stores are in local memory",
        "%",
        "registers spill, or an array is indexed at run time: unroll its loops, make the tile of a "
        "thread smaller, or allow more registers (__launch_bounds__)",
        at_least=5,
        of_kernel=_local,
    ),
    Rule(
        "occupancy",
        "of the most warps fit, and of those under one a scheduler can issue",
        "%",
        "lessen what the limiter is short of: registers, shared memory, or threads a block",
        at_most=50,
        of_kernel=_low_occupancy,
    ),
    Rule(
        "uneven work",
        "of the warps that fit were there",
        "%",
        "blocks end at different times: give each the same work, or make them smaller",
        at_most=60,
        of_kernel=_imbalance,
    ),
    Rule(
        "small grid",
        "of blocks: the device holds more at once",
        "waves",
        "use more and smaller blocks, or split the reduction over several",
        at_most=0.5,
        of_kernel=lambda kernel: kernel.waves,
    ),
    Rule(
        "tail",
        "of the device stands idle on average, since the last wave of blocks is partial",
        "%",
        "let the number of blocks be a multiple of what fits, or let resident blocks loop",
        at_least=20,
        of_kernel=_tail,
    ),
    Rule(
        "waiting for memory",
        "of the waiting is for global or local memory, which is not busy",
        "%",
        "have more loads under way: unroll, load the next tile early (cp.async, TMA), more warps",
        at_least=40,
        of_kernel=_waiting_for_memory,
    ),
    Rule(
        "narrow loads",
        "in each load, in a kernel that waits for them",
        "bytes a lane",
        "load 16 bytes a lane (float4)",
        at_most=4,
        of_kernel=_lane_bytes,
    ),
    Rule(
        "barriers",
        "of the waiting is at barriers",
        "%",
        "synchronise less: warp shuffles in place of shared memory, two buffers, smaller blocks",
        at_least=20,
        of_kernel=_stall("barrier"),
    ),
    Rule(
        "shared memory's queue",
        "of the waiting is for shared memory and its queue",
        "%",
        "load wider from shared memory, or keep in registers what is read again",
        at_least=30,
        of_kernel=_stall("short_scoreboard", "mio_throttle"),
    ),
    Rule(
        "full pipe",
        "of the waiting is for a pipe that computes",
        "%",
        "it is busy: use tensor cores or a narrower dtype where precision allows, or compute less",
        at_least=30,
        of_kernel=_stall("math_pipe_throttle"),
    ),
    Rule(
        "divergence",
        "take part in an instruction of a warp",
        "of 32 threads",
        "let the lanes of a warp take the same branch, and fill the last warp",
        at_most=24,
        of_kernel=lambda kernel: kernel.threads_per_instruction,
    ),
)
