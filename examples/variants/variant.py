"""All-gather + Linear over R ranks, in one kernel: one of nine ways to share out the work.

    y[b, k] = bias[k] + sum over r, h of x[r, b, h] * weight[k, r*H + h]

x (R, B, H), weight (K, R*H), bias (K,), y (B, K), float32. The ranks are read where they lie. WAY
and WARPS, warps a block, say which way this file is; examples/compare_variants.py sets them.

- "warp": one warp an output. Lane l takes every 32nd of the R*H terms, then shuffles add up.
- "shared": the same, and a block first copies pieces of its row of x to shared memory.
- "thread": one thread an output, all terms in a loop.
"""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

WAY = "warp"
WARPS = 7
KIND = "cuda"

# Operators of a library in place of pybind's functions: torch/extension.h would take a minute to
# compile.
SOURCE = r"""
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

namespace {

constexpr int kLanes = 32, kThreads = kWarps * kLanes;
constexpr int kPiece = 1024;  // floats of a row in shared memory at once

struct Sizes {
  int R, B, H, K;
};

__device__ float sum_over_lanes(float value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// x[r, b, h] for i = r*H + h.
__device__ const float* gathered(const float* x, int b, int i, Sizes s) {
  return x + (int64_t(i / s.H) * s.B + b) * s.H + i % s.H;
}

__global__ void __launch_bounds__(kThreads)
    by_warp(const float* x, const float* weight, const float* bias, float* y, Sizes s) {
  const int64_t output = int64_t(blockIdx.x) * kWarps + threadIdx.x / kLanes;
  if (output >= int64_t(s.B) * s.K) return;
  const int b = output / s.K, k = output % s.K, terms = s.R * s.H;
  const float* row = weight + int64_t(k) * terms;
  float sum = 0;
  for (int i = threadIdx.x % kLanes; i < terms; i += kLanes) sum += *gathered(x, b, i, s) * row[i];
  sum = sum_over_lanes(sum);
  if (threadIdx.x % kLanes == 0) y[output] = sum + bias[k];
}

__global__ void __launch_bounds__(kThreads)
    by_warp_shared(const float* x, const float* weight, const float* bias, float* y, Sizes s) {
  __shared__ float piece[kPiece];
  const int b = blockIdx.y, k = blockIdx.x * kWarps + threadIdx.x / kLanes, terms = s.R * s.H;
  float sum = 0;
  for (int start = 0; start < terms; start += kPiece) {
    const int count = min(kPiece, terms - start);
    for (int i = threadIdx.x; i < count; i += kThreads) piece[i] = *gathered(x, b, start + i, s);
    __syncthreads();
    if (k < s.K) {
      const float* row = weight + int64_t(k) * terms + start;
      for (int i = threadIdx.x % kLanes; i < count; i += kLanes) sum += piece[i] * row[i];
    }
    __syncthreads();
  }
  sum = sum_over_lanes(sum);
  if (k < s.K && threadIdx.x % kLanes == 0) y[int64_t(b) * s.K + k] = sum + bias[k];
}

__global__ void __launch_bounds__(kThreads)
    by_thread(const float* x, const float* weight, const float* bias, float* y, Sizes s) {
  const int64_t output = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (output >= int64_t(s.B) * s.K) return;
  const int b = output / s.K, k = output % s.K, terms = s.R * s.H;
  const float* row = weight + int64_t(k) * terms;
  float sum = 0;
  for (int i = 0; i < terms; ++i) sum += *gathered(x, b, i, s) * row[i];
  y[output] = sum + bias[k];
}

at::Tensor run(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  TORCH_CHECK(x.is_cuda() && x.dim() == 3, "x must be (R, B, H) on a CUDA device");
  TORCH_CHECK(x.scalar_type() == at::kFloat, "x is ", x.scalar_type(), "; float is accepted");
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor in = x.contiguous();
  const Sizes s{int(x.size(0)), int(x.size(1)), int(x.size(2)), int(weight.size(0))};
  TORCH_CHECK(weight.size(1) == int64_t(s.R) * s.H, "weight must have R * H columns");
  auto y = at::empty({s.B, s.K}, x.options());
  const int64_t outputs = y.numel();
  if (outputs == 0) return y;
  const auto kernel = kWay == 0 ? by_warp : kWay == 1 ? by_warp_shared : by_thread;
  const int64_t each = kWay == 2 ? kThreads : kWarps;  // outputs of a block
  const dim3 grid =
      kWay == 1 ? dim3((s.K + kWarps - 1) / kWarps, s.B) : dim3((outputs + each - 1) / each);
  kernel<<<grid, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
      in.const_data_ptr<float>(), weight.contiguous().const_data_ptr<float>(),
      bias.const_data_ptr<float>(), y.mutable_data_ptr<float>(), s);
  TORCH_CHECK(cudaGetLastError() == cudaSuccess, "the launch failed");
  return y;
}

}  // namespace

TORCH_LIBRARY(gather_linear_variant, m) {
  m.def("run(Tensor x, Tensor weight, Tensor bias) -> Tensor", run);
}
"""

WAYS = ("warp", "shared", "thread")
load_inline(
    "gather_linear_variant",
    cpp_sources="",
    cuda_sources=f"constexpr int kWay = {WAYS.index(WAY)}, kWarps = {WARPS};\n{SOURCE}",
    no_implicit_headers=True,
    is_python_module=False,
)


class ModelNew(nn.Module):
    """x (ranks, B, features) -> y (B, outputs)."""

    def __init__(self, ranks: int, features: int, outputs: int) -> None:
        super().__init__()
        self.proj = nn.Linear(ranks * features, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.gather_linear_variant.run(x, self.proj.weight, self.proj.bias)
