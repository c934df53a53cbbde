// All-gather on the last dim, then Linear, in one launch and with no gathered copy:
//
//   out[b, k] = bias[k] + sum over r, h of x[r, b, h] * weight[k, r*H + h]
//
// x (R, B, H), weight (K, R*H), bias (K,) or none, out (B, K) contiguous. This header is plain C++:
// the choice of a kernel needs it also where no CUDA compiler is.
#pragma once

#include <cstdint>

#include "cuda/scalar.h"

struct CUstream_st;  // cudaStream_t is a pointer to this

namespace kernelbench_dist::cuda {

// One call. Strides are in elements and may be anything, zero included; the offset of each element
// fits in 31 bits, and B in the y dimension of a grid.
struct AllGatherLinear {
  Scalar type;
  int64_t R, B, H, K;
  const void* x;
  const void* weight;
  const void* bias;  // null: none
  void* out;
  int64_t x_rank, x_row, x_feature;
  int64_t w_output, w_feature, b_output;
};

// A way to share out the work: each group of `lanes` lanes of a warp computes `rows` x `outputs`
// elements of out, its lanes sharing out the R*H products of each, in blocks of `threads`. Larger
// tiles read less; smaller ones keep more of the chip busy. docs/all_gather_linear.md says how
// these five were found.
struct Way {
  int rows, outputs, lanes, threads;
};
inline constexpr Way kWays[] = {
    {1, 1, 32, 256}, {2, 2, 8, 128}, {2, 2, 32, 128}, {4, 4, 8, 128}, {4, 4, 32, 128}};
inline constexpr int kWayCount = sizeof(kWays) / sizeof(kWays[0]);

// These return a cudaError_t as int; 0 is success.
int launch_all_gather_linear(const AllGatherLinear& call, int way, CUstream_st* stream);

// The three gradients for sizes at which launches cost more than arithmetic, in one launch. Each
// output is contiguous, or null when it is not asked for; grad may have any strides.
struct AllGatherLinearBackward {
  Scalar type;
  int64_t R, B, H, K;
  const void* grad;    // (B, K)
  const void* x;       // (R, B, H); read for grad_weight
  const void* weight;  // (K, R*H); read for grad_x
  void* grad_x;
  void* grad_weight;
  void* grad_bias;
  int64_t g_row, g_output;
  int64_t x_rank, x_row, x_feature;
  int64_t w_output, w_feature;
};
int launch_all_gather_linear_backward(const AllGatherLinearBackward& call, CUstream_st* stream);

// Whether this build holds code for the current device.
bool runs_on_current_device();

}  // namespace kernelbench_dist::cuda
