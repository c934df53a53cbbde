"""The judge on a GPU: its clock, its locks, and what can only go wrong there."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from submissions import gather_linear

from kernelbench_dist import ops, timing
from kernelbench_dist.harness import Verdict, run_correctness, submit_kernel
from kernelbench_dist.harness import _timing as judge_timing
from kernelbench_dist.harness._judge import make_limits, make_options
from kernelbench_dist.harness._session import Session
from kernelbench_dist.harness._submission import read_submission

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SINES = Path(__file__).parent / "data" / "judge" / "sines.py"
FUSED = gather_linear(
    "return ops.all_gather_linear(x, self.proj.weight, self.proj.bias)",
    before="from kernelbench_dist import ops\n",
)
KERNEL = r"""
#include <ATen/cuda/CUDAContext.h>
__global__ void gather_linear(const float* x, const float* w, const float* b, float* y, int R,
                              int B, int H, int K) {
  int out = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (out >= B * K) return;
  int row = out / K, k = out % K;
  float sum = 0;
  for (int c = lane; c < R * H; c += 32)
    sum += x[(c / H * B + row) * H + c % H] * w[k * R * H + c];
  for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
  if (lane == 0) y[out AT] = sum + b[k];
}
torch::Tensor run(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
  TORCH_CHECK(x.dim() == 3, "x has ", x.dim(), " dims");
  x = x.contiguous();
  int R = x.size(0), B = x.size(1), H = x.size(2), K = w.size(0);
  auto y = torch::empty({B, K}, x.options());
  if (B * K)
    gather_linear<<<(B * K + 7) / 8, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), w.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(), R, B,
        H, K);
  return y;
}
"""


def cuda(kernel: str = KERNEL.replace(" AT", ""), kind: str = "cuda") -> str:
    before = f"""
from torch.utils.cpp_extension import load_inline

KIND = {kind!r}
extension = load_inline(
    "gather_linear",
    cpp_sources="torch::Tensor run(torch::Tensor x, torch::Tensor w, torch::Tensor b);",
    cuda_sources={kernel!r},
    functions=["run"],
)
"""
    return gather_linear("return extension.run(x, self.proj.weight, self.proj.bias)", before)


def submit(source: str, of: str | Path = "47", **options):
    return submit_kernel(source, of, device="cuda", **{"trials": 1, **options})


def sines(steps: int) -> str:
    return f"""
import torch
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        for _ in range(10):
            x = torch.sin(x)
        for _ in range({steps} - 10):
            torch.sin(x)
        return x
"""


@pytest.mark.parametrize(("steps", "verdict"), [(10, "same"), (11, "slower")])
def test_the_same_kernel_is_the_same_and_a_tenth_more_is_slower(steps, verdict):
    options = make_options(SINES, device="cuda", trials=1)
    submission = read_submission(sines(steps))
    got = []
    with Session(SINES, options, make_limits(60, 60, None), submission) as session:
        session.open_problem()
        session.open_submission()
        session.construct_reference(1, {})
        session.construct_submission()
        for _ in range(20):
            result = judge_timing.measure(session, rounds=8, min_time_ms=2.0)
            got.append(result.ratio("submission"))
    print([f"{r.ratio:.4f} {r.verdict}" for r in got])
    assert sum(r.verdict == verdict for r in got) >= 19


def test_our_operator_passes_with_the_benchmark_s_time_and_ratio():
    device = torch.device("cuda")
    x = torch.randn(4, 12, 32, device=device)
    linear = torch.nn.Linear(128, 56, device=device)
    with torch.no_grad():
        bench = timing.bench(
            {
                "reference": lambda x: linear(torch.cat(x.unbind(0), -1)),
                "fused": lambda x: ops.all_gather_linear(x, linear.weight, linear.bias),
            },
            x,
        )
    result = submit(FUSED)
    print(bench)
    print(result)
    assert result.passed, result.reason
    assert result.speed_of_light.time_class == "launch-bound"
    assert result.launches.kernels == 1
    assert result.fusion_ratio == result.reference_launches.kernels
    mine, theirs = result.timing, bench
    time = mine["submission"].warm.median_us / theirs["fused"].warm.median_us
    ratio = mine.ratio("submission").ratio / theirs.ratio("fused").ratio
    assert 0.95 < time < 1.05, time
    assert 0.95 < ratio < 1.05, ratio


def test_a_cuda_submission_passes_and_reports_its_kernel():
    result = submit(cuda())
    assert result.passed, result.reason
    assert result.submission.kind == "cuda"
    (kernel,) = result.builds[0].kernels
    assert "gather_linear" in kernel.name
    assert kernel.registers > 0
    assert kernel.spill_store_bytes == 0
    assert result.launches.kernels == 1
    assert result.launches.library_share == 0
    assert result.timing.ratio("submission").verdict == "faster"


def test_a_write_out_of_bounds_harms_nobody_else():
    bad = cuda(KERNEL.replace(" AT", " + (1ll << 38)"))
    result = run_correctness(bad, "47", device="cuda", trials=1)
    assert result.verdict is Verdict.RUNTIME_ERROR
    assert "illegal memory access" in result.reason
    assert run_correctness(cuda(), "47", device="cuda", trials=1).passed


def test_library_kernels_under_a_kernel_s_name():
    result = submit(gather_linear(before='KIND = "cuda"\n'), static=False)
    assert result.verdict is Verdict.CHEATING
    assert "not its own" in result.reason


PATCHED = """
import time, torch
torch.cuda.Event.elapsed_time = lambda self, other: 0.001
torch.cuda.synchronize = lambda *a: None
time.perf_counter = time.monotonic = lambda: 0.0
time.perf_counter_ns = time.monotonic_ns = lambda: 0
torch.allclose = lambda *a, **k: True
"""


def test_a_patched_timer_changes_no_figure():
    result = submit(gather_linear(before=PATCHED), static=False)
    assert result.passed, result.reason
    assert result.timing.ratio("submission").verdict == "same"
    result = submit(gather_linear(before=PATCHED))
    assert result.verdict is Verdict.CHEATING


def test_work_on_a_side_stream_is_no_win(tmp_path):
    problem = tmp_path / "product.py"
    problem.write_text("""
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return x @ x

def get_inputs(generator, jitter=True):
    return [torch.randn(4096, 4096, generator=generator)]

def get_init_inputs():
    return []
""")
    source = """
import torch
from torch import nn

STREAM = torch.cuda.Stream()

class ModelNew(nn.Module):
    def forward(self, x):
        with torch.cuda.stream(STREAM):
            return x @ x
"""
    result = submit(source, problem, static=False)
    if result.passed:
        assert 0.9 < result.timing.ratio("submission").ratio < 2
    else:
        assert result.verdict in (Verdict.INCORRECT_VALUES, Verdict.NOT_FINITE, Verdict.CHEATING,
                                  Verdict.NONDETERMINISTIC)  # fmt: skip


def test_tiny_sizes_are_named_launch_bound():
    result = submit(FUSED, sizes="R=2,B=1,H=8,K=8")
    assert result.passed, result.reason
    assert result.speed_of_light.time_class == "launch-bound"
    assert result.timing["submission"].launch_bound


def test_the_comparison_of_a_large_output_takes_little_memory(tmp_path):
    problem = tmp_path / "large.py"
    problem.write_text("""
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return x.repeat(N)

N = 8

def get_inputs(generator, jitter=True):
    return [torch.randn(1000, generator=generator)]

def get_init_inputs():
    return []
""")
    source = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        return x.repeat(NUMBER)
"""
    n = 250_000  # 1 GB
    result = run_correctness(
        source.replace("NUMBER", str(n)), problem, sizes={"N": n}, device="cuda", trials=1
    )
    assert result.passed, result.reason


def test_gradients_are_timed_too():
    result = submit(gather_linear(), backward=True)
    assert result.passed, result.reason
    assert result.options.backward
    assert result.timing.ratio("submission").verdict == "same"


def test_two_judges_at_once_give_the_figures_of_one_alone():
    alone = submit(cuda())
    both: list = []
    threads = [threading.Thread(target=lambda: both.append(submit(cuda()))) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [r.verdict for r in both] == [Verdict.PASSED] * 2
    assert max(r.waited_seconds for r in both) > 0.1
    times = [r.timing["submission"].warm.median_us for r in (alone, *both)]
    print(times)
    assert max(times) < 1.05 * min(times)


def test_large_sizes_pass_without_suspicion():
    result = submit(FUSED, sizes="large", rounds=8)
    assert result.passed, result.reason
    print(result)
