"""submit_kernel: everything about a submission in one verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kernelbench_dist import _peaks
from kernelbench_dist.harness import _device, _timing
from kernelbench_dist.harness._answers import LaunchesAnswer, MemoryAnswer, read
from kernelbench_dist.harness._channel import dtype_name
from kernelbench_dist.harness._judge import (
    Found,
    Head,
    Sizes,
    check_syntax,
    judge_correctness,
    make_limits,
    make_options,
)
from kernelbench_dist.harness._problem import Draw, derived
from kernelbench_dist.harness._ranks import RanksKind
from kernelbench_dist.harness._results import (
    Build,
    Launches,
    Memory,
    Options,
    SpeedOfLight,
    SubmitResult,
)
from kernelbench_dist.harness._session import Progress, Session, silent
from kernelbench_dist.harness._side import JudgedError, Side
from kernelbench_dist.harness._static import static_check
from kernelbench_dist.harness._submission import Submission, read_submission
from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.timing import BenchResult, Candidate
from kernelbench_dist.timing._stats import MIN_ROUNDS

# Operators of torch that only allocate, look at memory in another way, or move it.
_FREE_OPERATORS = re.compile(
    r"aten\.(empty\w*|new_\w+|zeros\w*|ones\w*|full\w*|zero_|fill_|view\w*|_unsafe_view|reshape|"
    r"as_strided|expand|permute|transpose|t|squeeze|unsqueeze|select|slice|unbind|split\w*|detach|"
    r"alias|clone|contiguous|copy_|_to_copy|lift_fresh|resize_|set_|_local_scalar_dense)\b"
)
_MOST_LIBRARY_SHARE = 0.5
# A cold call cannot be faster than the datasheet; this much is left to the clocks of the events.
_FLOOR_SLACK = 0.95


def submit_kernel(
    source: str | Path,
    problem: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    sizes: Sizes = None,
    trials: int = 5,
    seed: int | None = None,
    device: str | None = None,
    backward: bool | None = None,
    ranks: RanksKind = "virtual",
    static: bool = True,
    rounds: int = 20,
    min_time_ms: float = 2.0,
    timeout_s: float = 60.0,
    build_timeout_s: float = 600.0,
    memory_limit_bytes: int | None = None,
    progress: Progress | None = None,
) -> SubmitResult:
    """Judge a submission whole: static check, build, correctness, then time, memory and launches.

    Args:
        source, problem, dtype, sizes, trials, seed, device, backward, ranks, timeout_s,
            build_timeout_s, memory_limit_bytes, progress: as for `run_correctness`. Time is taken
            at the last of the sizes. On virtual ranks it is that of all together.
        static: whether the static check may reject it.
        rounds: of timing, each on inputs drawn anew, 8 or more.
        min_time_ms: that one sample should last on a GPU.

    Returns:
        What was found until the verdict was known; what was not reached is None. On a CPU there is
        call time only, and neither launches nor speed of light.
    """
    check_timing(rounds, min_time_ms)
    options = make_options(
        problem,
        dtype=dtype,
        sizes=sizes,
        trials=trials,
        seed=seed,
        device=device,
        backward=backward,
        ranks=ranks,
    )
    limits = make_limits(timeout_s, build_timeout_s, memory_limit_bytes)
    submission = read_submission(source)
    head, found, measured = Head(submission, problem), Found(options), dict[str, Any]()
    tell = progress or silent
    with head.judging():
        check_syntax(submission)
        tell("reading the source")
        checked = static_check(submission, problem)
        measured["static"] = checked
        if static and not checked.passed:
            raise JudgedError(checked.verdict, f"static check: {checked.reason}")
        with Session(problem, options, limits, submission, progress=tell) as session:
            found.session = session
            judge_correctness(session, sizes, backward, found)
            at = session.options.sizes[-1] if session.options.sizes else {}
            measured["timing_sizes"] = dict(at)
            tell("waiting for the device")
            with _device.exclusive(session.options.device) as waited:
                measured["waited_seconds"] = waited
                _measure(session, at, rounds, min_time_ms, measured)
        head.reason = _summary(measured.get("timing"), measured.get("timing_of"))
    return SubmitResult(**head.fields(), **found.fields(submission), **measured)


def check_timing(rounds: int, min_time_ms: float) -> None:
    """ValueError where one of them is of no use."""
    if type(rounds) is not int or rounds < MIN_ROUNDS:
        raise ValueError(f"rounds is {rounds!r}; an int of {MIN_ROUNDS} or more is accepted")
    if not 0 < min_time_ms < 1e6:
        raise ValueError(f"min_time_ms is {min_time_ms!r}; a positive number is accepted")


def _measure(
    session: Session,
    at: Mapping[str, int],
    rounds: int,
    min_time_ms: float,
    measured: dict[str, Any],
) -> None:
    """Launches, memory and time, into `measured` as they are known. Raises JudgedError."""
    assert session.submission is not None
    seed = derived(session.options.seed, "measuring")
    session.progress("counting launches and memory")
    session.construct_reference(seed, at)
    session.construct_submission()
    draw = session.draw(seed, jitter=False)
    session.put(draw)
    mine, operators = _launches_of(session, session.builds, draw)
    theirs = _launches(_profile(session.reference, draw), None)
    measured["launches"], measured["reference_launches"] = mine, theirs
    if mine and theirs and mine.kernels:
        measured["fusion_ratio"] = theirs.kernels / mine.kernels
    _check_kind(session, mine, operators)
    measured["memory"] = _memory(session.candidate, draw)
    measured["reference_memory"] = _memory(session.reference, draw)
    cost = cost_of(session, draw)
    session.progress(f"timing, {rounds} rounds")
    timing = _timing.measure(session, rounds=rounds, min_time_ms=min_time_ms)
    measured["timing"], measured["timing_of"] = timing, timing_of(session.options)
    light = speed_of_light(timing["submission"], cost, session.options.device, judged_dtype(draw))
    measured["speed_of_light"] = light
    check_floor(timing["submission"], light)


def check_floor(timed: Candidate, light: SpeedOfLight | None) -> None:
    """No call is faster than the datasheet. Raises JudgedError."""
    cold = timed.cold
    if light and cold and cold.median_us < _FLOOR_SLACK * light.floor_us:
        raise JudgedError(
            Verdict.CHEATING,
            f"with a cold L2 a call takes {cold.median_us:.3g} us, and its bytes and FLOPs take "
            f"{light.floor_us:.3g} us at the peaks of this device",
        )


def launches_of(session: Session, builds: Sequence[Build], draw: Draw) -> Launches | None:
    """What a call of the session's candidate launches.

    Raises JudgedError where a submission of a kernel's kind does its work in others' kernels.
    """
    found, operators = _launches_of(session, builds, draw)
    _check_kind(session, found, operators)
    return found


def _launches_of(
    session: Session, builds: Sequence[Build], draw: Draw
) -> tuple[Launches | None, Sequence[str]]:
    """And the operators of torch that it calls."""
    assert session.submission is not None
    profile = _profile(session.candidate, draw)
    return _launches(profile, kernel_names(builds, session.submission)), profile.operators


def kernel_names(builds: Sequence[Build], submission: Submission) -> frozenset[str]:
    """What the submission's own kernels are called, as far as it is known."""
    names = {function_name(k.name) for b in builds for k in b.kernels}
    return frozenset(names | set(re.findall(r"^def (\w+)\(", submission.text, re.MULTILINE)))


def function_name(kernel: str) -> str:
    """The name of a kernel without arguments, its template's or its own, and "anonymous".

    >>> function_name("void (anonymous namespace)::scale<float, 4>(float*, int)")
    'scale'
    >>> function_name("my::scale(float const*)"), function_name("<unnamed>::scale(int)")
    ('my::scale', 'scale')
    """
    named = re.sub(r"\(anonymous namespace\)::|<unnamed>::", "", kernel)
    return re.sub(r"<.*|\(.*", "", named).split(" ")[-1]


def _profile(side: Side, draw: Draw) -> LaunchesAnswer:
    reply, _ = side.ask("launches", {"id": draw.id}, step="profiling")[0]
    return read(LaunchesAnswer, reply)


def _launches(answer: LaunchesAnswer, own: frozenset[str] | None) -> Launches | None:
    """own: the names of the submission's kernels; None for the reference."""
    if answer.kernels is None:
        return None
    total = sum(us for _, us in answer.kernels)
    library = sum(us for name, us in answer.kernels if own is None or not is_own(name, own))
    return Launches(
        kernels=len(answer.kernels),
        copies=answer.copies,
        fills=answer.fills,
        names=tuple(name for name, _ in answer.kernels),
        library_share=library / total if total else 0.0,
    )


def is_own(kernel: str, own: frozenset[str]) -> bool:
    return any(re.search(rf"(^|\W){re.escape(name)}(\W|_|$)", kernel) for name in own if name)


def _check_kind(session: Session, launches: Launches | None, operators: Sequence[str]) -> None:
    """A submission of a kernel's kind must do its work in kernels of its own.

    operators: of torch that it calls, which decide where no kernels were recorded.
    """
    assert session.submission is not None
    kind = session.submission.kind
    # Then kernels of the virtual ranks' collectives are among those recorded.
    communicates = session.options.on_virtual_ranks
    if kind == "torch":
        return
    work = [op for op in operators if not _FREE_OPERATORS.match(op)]
    computes = [op for op in work if op.startswith("aten.")]
    if launches is not None and launches.kernels:
        if launches.library_share > _MOST_LIBRARY_SHARE and (computes or not communicates):
            raise JudgedError(
                Verdict.CHEATING,
                f"it is of kind {kind!r}, and {launches.library_share:.0%} of its device time is "
                f"in kernels that are not its own: {_listed(launches.names)}",
            )
        return
    if computes:
        raise JudgedError(
            Verdict.CHEATING,
            f"it is of kind {kind!r}, and computes with torch's own {_listed(computes)}",
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(sorted(set(names)))[:300]


def _memory(side: Side, draw: Draw) -> Memory | None:
    reply, _ = side.ask("memory", {"id": draw.id}, step="measuring memory")[0]
    peak = read(MemoryAnswer, reply).peak_above_inputs_bytes
    if peak is None:
        return None
    return Memory(peak_above_inputs_bytes=peak, source="torch's CUDA allocator, in the second call")


def cost_of(session: Session, draw: Draw) -> Mapping[str, Any]:
    """Of what is timed: one rank, or all where all share the device."""
    costs = [cost for cost, _ in session.reference.ask("cost", {"id": draw.id})]
    if not session.options.on_virtual_ranks:
        return costs[0]
    return {**costs[0], **{key: sum(c[key] for c in costs) for key in ("bytes", "flops")}}


def timing_of(options: Options) -> str | None:
    """Whose time it is, where there are several ranks."""
    if options.world_size == 1:
        return None
    if options.on_virtual_ranks:
        where = "device" if options.device.startswith("cuda") else "CPU"
        return f"all {options.world_size} virtual ranks together, on one {where}"
    return f"the slowest of {options.world_size} processes on gloo, which share this machine"


def judged_dtype(draw: Draw) -> str:
    floats = [t.dtype for ts in draw.tensors for t in ts if t.is_floating_point()]
    return dtype_name(floats[0]) if floats else "float32"


def speed_of_light(
    measured: Candidate, cost: Mapping[str, Any], device: str, dtype: str
) -> SpeedOfLight | None:
    peaks = _peaks.peaks(device, dtype)
    used = measured.cold or measured.warm
    if peaks is None or used is None:
        return None
    memory_us, compute_us = peaks.least_us(cost["bytes"], cost["flops"])
    floor_us = max(memory_us, compute_us)
    fraction = floor_us / used.median_us
    if measured.launch_bound:
        time_class = "launch-bound"
    elif fraction < 0.4:
        time_class = "latency-bound"
    else:
        time_class = "memory-bound" if memory_us >= compute_us else "compute-bound"
    return SpeedOfLight(
        bytes_moved=cost["bytes"],
        flops=cost["flops"],
        cost_source=cost["source"],
        peak_bytes_per_s=peaks.bytes_per_s,
        peak_flops_per_s=peaks.flops_per_s,
        peak_source=peaks.source,
        floor_us=floor_us,
        time_us=used.median_us,
        time_kind="cold" if measured.cold else "warm",
        roofline_fraction=fraction,
        time_class=time_class,
    )


def _summary(timing: BenchResult | None, timing_of: str | None) -> str:
    if timing is None:
        return "it agrees with the reference"
    ratio = timing.ratio("submission")
    kind = "call time" if ratio.kind == "call" else f"device time, {ratio.kind} L2"
    kind += f", of {timing_of}" if timing_of else ""
    note = f" ({ratio.note})" if ratio.note else ""
    return (
        f"it agrees with the reference; {kind}: {ratio.verdict}, {ratio.ratio:.3f} of the "
        f"reference's [{ratio.low:.3f}, {ratio.high:.3f}]{note}"
    )
