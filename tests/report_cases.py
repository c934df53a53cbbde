"""What the tests of reports share: stored results, and one of a GPU whose figures are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kernelbench_dist.harness import StaticResult, SubmitResult
from kernelbench_dist.harness._results import (
    Build,
    ErrorMap,
    Finding,
    KernelResources,
    Launches,
    Memory,
    Options,
    Output,
    Source,
    SpeedOfLight,
    Trial,
)
from kernelbench_dist.harness._trail import Delta, Entry, Figures, Tokens
from kernelbench_dist.report import Report
from kernelbench_dist.report._sweep import Row
from kernelbench_dist.timing import BenchResult, Environment
from kernelbench_dist.timing._result import assemble

STORED = Path(__file__).parent / "data/report"
HOSTILE = (
    "</pre></style></script><script>alert('x')</script><img src=x onerror=alert(1)>&\"'`|\x1b[31m"
)
NOW = "2026-01-01T00:00:00+00:00"

SOURCE = '''\
"""A kernel of one's own."""
import torch


@torch.no_grad()
def scale(x, by: float = 2.0) -> torch.Tensor:
    # twice
    return x * by


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return scale(x) if len(x) > 1 else x
'''


def bench() -> BenchResult:
    """On a GPU: 1.3 us against 3.5 us over a floor of 0.7 us, twenty rounds."""
    rng = np.random.default_rng(7)

    def samples(us: float) -> tuple[int, list[float]]:
        return 100, [float(us * (1 + 0.01 * x)) for x in rng.standard_gamma(2.0, 20)]

    def kinds(us: float) -> Any:
        return {"warm": samples(us), "cold": samples(us + 2.6), "call": samples(8 + 4 * us)}

    return assemble(
        [("reference", kinds(3.5)), ("submission", kinds(1.3))],
        ("(empty kernel)", kinds(0.7)),
        environment=Environment(
            started_at=NOW,
            device="cuda:0",
            device_name="NVIDIA H200",
            driver="580.1",
            cuda="13.0",
            torch="2.13.0",
            python="3.11.7",
            threads=2,
            clock_mhz=1980,
            l2_bytes=60 << 20,
        ),
        method="graph",
        reason=None,
        rounds=20,
        seed=3,
        baseline="reference",
    )


def output(**changed: Any) -> Output:
    """Of 20 x 30 elements, in tiles of 5 x 10; one tile is at half of its bound."""
    worst = [[0.0, 0.01, 0.02], [0.03, 0.5, 0.06], [0.0, 0.2, 0.004], [0.1, 0.1, 0.1]]
    known: dict[str, Any] = {
        "name": "output",
        "rank": 0,
        "shape": (20, 30),
        "dtype": "float32",
        "elements": 600,
        "mismatches": 0,
        "max_abs_error": 2.5e-7,
        "mean_abs_error": 1e-8,
        "max_rel_error": 1e-6,
        "worst_index": (7, 15),
        "worst_result": 0.25,
        "worst_expected": 0.25000025,
        "worst_error": 2.5e-7,
        "worst_bound": 5e-7,
        "worst_ulp": 4.0,
        "error_map": ErrorMap(
            rows=20, columns=30, tile_rows=5, tile_columns=10, worst=tuple(map(tuple, worst))
        ),
    }
    return Output(**{**known, **changed})


def submit(**changed: Any) -> SubmitResult:
    """A submission that passed on a GPU, with everything that can be known of one."""
    source = Source(name="mine.py", sha256="ab" * 32, kind="cuda", kind_is_declared=True)
    trial = Trial(
        seed=5,
        sizes={"B": 20},
        shapes=((4, 20, 32),),
        verdict="PASSED",
        reason="it agrees with the reference",
        bitwise_equal=True,
        outputs=(output(),),
    )
    kernel = KernelResources(
        name="gather_linear<float, 4>",
        architecture="sm_90",
        registers=40,
        shared_bytes=8192,
        constant_bytes=400,
        stack_bytes=0,
        spill_store_bytes=0,
        spill_load_bytes=0,
    )
    build = Build(
        name="mine",
        key="k",
        from_cache=False,
        seconds=31.0,
        succeeded=True,
        diagnostics=(),
        kernels=(kernel,),
        log="",
    )
    finding = Finding(
        rule="writes-output", severity="warning", line=3, column=0, message="prints", code="print()"
    )
    known: dict[str, Any] = {
        "verdict": "PASSED",
        "reason": "it agrees with the reference; device time, warm L2: faster",
        "submission": source,
        "problem": "level2/47_virtual_all_gather_concat_linear",
        "started_at": NOW,
        "seconds": 41.5,
        "options": Options(
            device="cuda:0", dtype="float32", sizes=({"B": 20},), trials=1, seed=5, backward=False
        ),
        "static": StaticResult(
            verdict="PASSED", reason="", started_at=NOW, seconds=0.1, findings=(finding,)
        ),
        "builds": (build,),
        "trials": (trial,),
        "timing": bench(),
        "timing_sizes": {"B": 20},
        "waited_seconds": 0.5,
        "memory": Memory(peak_above_inputs_bytes=2688, source="torch's CUDA allocator"),
        "reference_memory": Memory(peak_above_inputs_bytes=33 << 20, source="the same"),
        "launches": Launches(
            kernels=1, copies=0, fills=0, names=("gather_linear",), library_share=0.0
        ),
        "reference_launches": Launches(
            kernels=2, copies=0, fills=0, names=("cat", "gemm"), library_share=1.0
        ),
        "fusion_ratio": 2.0,
        "speed_of_light": SpeedOfLight(
            bytes_moved=40_000,
            flops=200_000,
            cost_source="problem",
            peak_bytes_per_s=4.8e12,
            peak_flops_per_s=67e12,
            peak_source="datasheet of the H200",
            floor_us=0.00833,
            time_us=3.9,
            time_kind="cold",
            roofline_fraction=0.00214,
            time_class="launch-bound",
        ),
        "notes": ("Landlock 4 of 6",),
    }
    return SubmitResult(**{**known, **changed})


def profile() -> dict[str, Any]:
    """As profile_kernel's result in plain values; shares of stalls add to 100 %."""
    stalls = (
        ("long scoreboard", 41.0),
        ("barrier", 22.0),
        ("wait", 14.0),
        ("short scoreboard", 9.0),
        ("not selected", 8.0),
        ("branch resolving", 6.0),
    )
    counters = {
        "name": "gather_linear<float, 4>",
        "grid": [12, 7, 1],
        "block": [128, 1, 1],
        "time_us": 3.4,
        "dram_percent": 12.0,
        "l2_percent": 20.0,
        "sm_percent": 18.5,
        "occupancy_achieved_percent": 43.0,
        "occupancy_limiter": "registers",
        "registers_per_thread": 40,
        "stalls": [{"reason": r, "percent": p} for r, p in stalls],
    }
    held = {"name": "launch-bound", "because": "1.3 us, under three empty kernels"}
    held["source"] = "timer"
    return {
        "tool": "profile_kernel",
        "time_class": held,
        "activity": [
            {
                "kind": "kernel",
                "name": "gather_linear<float, 4>",
                "launches_per_call": 1.0,
                "us_per_call": 1.3,
                "grid": [12, 7, 1],
                "block": [128, 1, 1],
                "is_own": True,
            },
            {"kind": "fill", "name": "fill", "launches_per_call": 1.0, "us_per_call": 0.9,
             "bytes": 4096},
        ],
        "kernels": [{"counters": counters, "time_class": held}],
        "counters_source": "Nsight Compute 2025.3",
        "counter_light": {"percent": 20.0, "sm_percent": 18.5, "memory_percent": 20.0},
        "hints": [
            {
                "rule": "bank_conflicts",
                "what": "bank conflicts in shared memory",
                "kernel": "gather_linear<float, 4>",
                "value": 87.5,
                "threshold": 10.0,
                "unit": "%",
                "advice": "pad the rows",
            }
        ],
    }  # fmt: skip


def specs() -> dict[str, Any]:
    """As get_gpu_specs' result in plain values."""
    return {
        "tool": "get_gpu_specs",
        "device_name": "NVIDIA H200",
        "measured": [
            {"name": "copy", "rate": 4.2e12, "unit": "B/s", "how": "graph"},
            {"name": "float32", "rate": 51e12, "unit": "FLOP/s", "how": "graph"},
        ],
    }


def tries() -> tuple[Entry, ...]:
    """Eight calls: the sixth is the best, and the seventh within its noise."""

    def submit(us: float, sha256: str, **deltas: Any) -> dict[str, Any]:
        ratio = us / 3.5
        figures = Figures(
            warm_us=us,
            call_us=12.0,
            kind="warm",
            ratio=ratio,
            ratio_low=0.98 * ratio,
            ratio_high=1.02 * ratio,
            launches=1,
        )
        return {"verdict": "PASSED", "sha256": sha256 * 64, "figures": figures, **deltas}

    def delta(change: float, sha256: str, within_noise: bool = False) -> Delta:
        return Delta(change=change, within_noise=within_noise, sha256=sha256 * 64)

    calls: list[tuple[str, dict[str, Any]]] = [
        ("prompt", {}),
        ("static_check", {"verdict": "PASSED", "sha256": "a" * 64}),
        ("submit_kernel", submit(3.1, "a")),
        ("run_correctness", {"verdict": "INCORRECT_VALUES", "sha256": "b" * 64, "reason": "off"}),
        (
            "submit_kernel",
            submit(1.9, "c", delta_to_last=delta(-0.387, "a"), delta_to_best=delta(-0.387, "a")),
        ),
        (
            "submit_kernel",
            submit(1.3, "d", delta_to_last=delta(-0.316, "c"), delta_to_best=delta(-0.316, "c")),
        ),
        (
            "submit_kernel",
            submit(
                1.31,
                "e",
                delta_to_last=delta(0.0077, "d", within_noise=True),
                delta_to_best=delta(0.0077, "d", within_noise=True),
            ),
        ),
        (
            "submit_kernel",
            submit(2.4, "f", delta_to_last=delta(0.83, "e"), delta_to_best=delta(0.846, "d")),
        ),
    ]
    return tuple(
        Entry(
            **{
                "time": NOW,
                "tool": tool,
                "submission": "<source>",
                "problem": "level2/47",
                "device": "cuda:0",
                "device_name": "NVIDIA H200",
                "dtype": "float32",
                "sizes": {"B": 20},
                "backward": False,
                "seconds": 3.0 + i,
                "model_seconds": None if i == 0 else 10.0 * i,
                "tokens": Tokens(prompt=100, completion=20),
                "source_is_correct": True if fields.get("figures") else None,
                **fields,
            }
        )
        for i, (tool, fields) in enumerate(calls)
    )


def rows() -> tuple[Row, ...]:
    """Ten verdicts on two problems: seven passed, of which six were timed."""
    speeds = (4.0, 2.0, 1.5, 1.0, 0.8, 0.5)
    timed = [
        Row(
            problem=f"level1/{1 + i % 2}_all_gather",
            submission=f"kernel_{i}.py",
            verdict="PASSED",
            reason="it agrees with the reference",
            seconds=10.0 + i,
            kind="warm",
            time_us=10 / speed,
            reference_us=10.0,
            speedup=speed,
            speedup_low=0.99 * speed,
            speedup_high=1.01 * speed,
            says="faster" if speed > 1 else "same" if speed == 1 else "slower",
            time_class="memory-bound",
            launches=1 + i,
        )
        for i, speed in enumerate(speeds)
    ]
    others = [
        Row(
            problem=f"level1/{1 + i % 2}_all_gather",
            submission=f"other_{i}.py",
            verdict=verdict,
            reason=f"reason {i}",
            seconds=1.0,
        )
        for i, verdict in enumerate(("PASSED", "TIMEOUT", "INCORRECT_VALUES", "COMPILE_ERROR"))
    ]
    return (*timed, *others)


def full() -> Report:
    """All that is known of one submission on one page."""
    return Report(
        title="mine.py for level2/47",
        made_at=NOW,
        result=submit(),
        profile=profile(),
        specs=specs(),
        trail=tries(),
        source=SOURCE,
        reference="class Model: ...\n",
    )


def index() -> Report:
    return Report(title="Sweep of 10 submissions", made_at=NOW, sweep=rows())
