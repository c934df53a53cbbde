// The three gradients of all-gather + Linear in one launch, for sizes at which three launches cost
// more than the arithmetic. With i = r*H + h:
//
//   grad_x[r, b, h]   = sum over k of grad[b, k] * weight[k, i]
//   grad_weight[k, i] = sum over b of grad[b, k] * x[r, b, h]
//   grad_bias[k]      = sum over b of grad[b, k]
//
// One thread an element; neighbouring threads take neighbouring h, so loads and stores coalesce.
// The elements of the three outputs are counted through, one after the other.
#include <cuda_runtime.h>

#include "cuda/all_gather_linear.h"
#include "cuda/scalars.cuh"

namespace kernelbench_dist::cuda {
namespace {

constexpr int kThreads = 128;

template <typename T>
__global__ void __launch_bounds__(kThreads) backward(const AllGatherLinearBackward c) {
  using Acc = accumulator_t<T>;
  const T* const grad = static_cast<const T*>(c.grad);
  const int inner = c.R * c.H, B = c.B, K = c.K, H = c.H;
  int at = blockIdx.x * kThreads + threadIdx.x;
  Acc sum = 0;

  if (c.grad_x) {
    const int elements = inner * B;
    if (at < elements) {
      const int h = at % H, b = at / H % B, i = at / H / B * H + h;
      const T* const w = static_cast<const T*>(c.weight) + i * c.w_feature;
#pragma unroll 8
      for (int k = 0; k < K; ++k) {
        sum += widen(grad[b * c.g_row + k * c.g_output]) * widen(w[k * c.w_output]);
      }
      return store(static_cast<T*>(c.grad_x) + at, sum);
    }
    at -= elements;
  }
  if (c.grad_weight) {
    const int elements = K * inner;
    if (at < elements) {
      const int i = at % inner, k = at / inner;
      const T* const x = static_cast<const T*>(c.x) + i / H * c.x_rank + i % H * c.x_feature;
#pragma unroll 8
      for (int b = 0; b < B; ++b) {
        sum += widen(grad[b * c.g_row + k * c.g_output]) * widen(x[b * c.x_row]);
      }
      return store(static_cast<T*>(c.grad_weight) + at, sum);
    }
    at -= elements;
  }
  if (c.grad_bias && at < K) {
#pragma unroll 8
    for (int b = 0; b < B; ++b) sum += widen(grad[b * c.g_row + at * c.g_output]);
    store(static_cast<T*>(c.grad_bias) + at, sum);
  }
}

}  // namespace

int launch_all_gather_linear_backward(const AllGatherLinearBackward& call, CUstream_st* stream) {
  const int64_t inner = call.R * call.H;
  const int64_t elements = (call.grad_x ? inner * call.B : 0) +
                           (call.grad_weight ? call.K * inner : 0) + (call.grad_bias ? call.K : 0);
  const int blocks = static_cast<int>((elements + kThreads - 1) / kThreads);
  return with_type(call.type, [&]<typename T>() {
    backward<T><<<blocks, kThreads, 0, stream>>>(call);
    return static_cast<int>(cudaGetLastError());
  });
}

}  // namespace kernelbench_dist::cuda
