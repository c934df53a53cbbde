"""get_gpu_specs: a GPU's peaks by its datasheet, and rates that were measured on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import cache

import torch

from kernelbench_dist import _peaks, timing
from kernelbench_dist.harness import _device
from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.harness.profile._results import GpuSpecs, MeasuredRate

_MOST_COPY_BYTES = 2 << 30
_N = 8192
_ROUNDS = 8
_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "tf32": torch.float32,
    "float32": torch.float32,
    "float64": torch.float64,
}


def get_gpu_specs(device: str | None = None) -> GpuSpecs:
    """A GPU's peaks by its datasheet, and rates measured on it once in this process.

    Measured are a copy from device memory to device memory (bytes read and written), products of
    two matrices of 8192 x 8192 in each dtype (by torch's library, on random data), and an empty
    kernel. They are no ceilings: good kernels beat a library.

    Args:
        device: "cuda" or "cuda:N"; by default the current GPU.

    Returns:
        The rates; without a GPU, what is known without one, and an ENVIRONMENT_ERROR that says so.

    Raises:
        ValueError: another device.
    """
    name = "cuda" if device is None else device
    try:
        of = torch.device(name)
    except RuntimeError:
        of = None
    if of is None or of.type != "cuda":
        raise ValueError(f"device is {device!r}; 'cuda' or 'cuda:N' is accepted")
    start = time.monotonic()
    count = torch.cuda.device_count()
    if not torch.cuda.is_available() or (of.index or 0) >= count:
        cpu_only = torch.version.cuda is None
        why = "torch is built without CUDA" if cpu_only else "none is visible to torch's driver"
        return GpuSpecs(
            verdict=Verdict.ENVIRONMENT_ERROR,
            reason=f"device is {name!r}, and torch sees {count} CUDA device(s): {why}",
            started_at=_now(),
            seconds=time.monotonic() - start,
            device=name,
            cuda=torch.version.cuda,
            torch=torch.__version__,
            notes=tuple(map(_datasheet, _peaks.GPUS)),
        )
    return _measured(torch.cuda.current_device() if of.index is None else of.index)


def _datasheet(gpu: str) -> str:
    found = {name: _peaks.peaks_of(gpu, name) for name in _DTYPES}
    rates = [
        f"{name} {p.flops_per_s / 1e12:g} TFLOP/s"
        for name, p in found.items()
        if p is not None and p.flops_per_s
    ]
    bandwidth = next(p.bytes_per_s for p in found.values() if p is not None)
    return f"datasheet of the {gpu}: {bandwidth / 1e12:g} TB/s, {', '.join(rates)}"


@cache
def _measured(index: int) -> GpuSpecs:
    start, started_at = time.monotonic(), _now()
    device = torch.device("cuda", index)
    properties = torch.cuda.get_device_properties(device)
    peaks = {name: _peaks.peaks(str(device), name) for name in _DTYPES}
    known = [p for p in peaks.values() if p is not None]
    copied = min(_MOST_COPY_BYTES, properties.total_memory // 16)
    with _device.exclusive(str(device)) as waited, torch.cuda.device(device), torch.no_grad():
        result = timing.bench(
            _functions(device, copied), device=device, rounds=_ROUNDS, cold=False, progress=False
        )
        torch.cuda.empty_cache()
    rates = []
    for name, work in {"copy": 2 * copied, **dict.fromkeys(_DTYPES, 2 * _N**3)}.items():
        warm = result[name].warm
        if warm is not None:
            rates.append(
                MeasuredRate(
                    name=name,
                    rate=1e6 * work / warm.median_us,
                    unit="B/s" if name == "copy" else "FLOP/s",
                    how=f"median of {_ROUNDS} rounds, by {result.method}",
                )
            )
    floor = result.empty.warm
    copy = next((r.rate for r in rates if r.name == "copy"), None)
    return GpuSpecs(
        verdict=Verdict.PASSED,
        reason=f"measured on {properties.name}",
        started_at=started_at,
        seconds=time.monotonic() - start - waited,
        device=str(device),
        device_name=properties.name,
        compute_capability=f"{properties.major}.{properties.minor}",
        multiprocessors=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        l2_bytes=properties.L2_cache_size,
        driver=result.environment.driver,
        cuda=torch.version.cuda,
        torch=torch.__version__,
        clock_mhz=result.environment.clock_mhz,
        datasheet=known[0].source if known else None,
        datasheet_bytes_per_s=known[0].bytes_per_s if known else None,
        datasheet_flops_per_s={
            name: p.flops_per_s for name, p in peaks.items() if p is not None and p.flops_per_s
        },
        measured=tuple(rates),
        empty_kernel_us=floor.median_us if floor else None,
        measured_at=started_at,
        ridge_points={r.name: r.rate / copy for r in rates if copy and r.name != "copy"},
    )


def _functions(device: torch.device, copied: int) -> dict[str, Callable[[], object]]:
    source = torch.zeros(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def product(name: str) -> Callable[[], object]:
        dtype = _DTYPES[name]
        a, b = (torch.randn(_N, _N, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        precision = "tf32" if name == "tf32" else "ieee"

        def run() -> object:
            matmul = torch.backends.cuda.matmul
            before = matmul.fp32_precision
            matmul.fp32_precision = precision
            try:
                return torch.mm(a, b, out=out)
            finally:
                matmul.fp32_precision = before

        return run

    return {"copy": lambda: target.copy_(source), **{name: product(name) for name in _DTYPES}}


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
