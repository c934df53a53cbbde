// all_gather_linear of float32 on Hopper's tensor cores, nearly as exact as float32 itself:
//
//   x * w = (x1 + x2) * (w1 + w2), about x2 * w1 + x1 * w2 + x1 * w1
//
// where x1 is x rounded to TF32 (11 bits), and x2 what is left, rounded again. The tensor cores
// truncate as they add, so the products of each step of 32 features are added to the sum outside.
//
// As in all_gather_linear_tiles.cu, and between the copy into a slot of the ring and the products
// three warps replace the operands there by their first parts and write the second ones behind
// them. Element by element, so that the swizzle does not matter.
#include <algorithm>
#include <atomic>

#include "cuda/all_gather_linear_tiles.h"
#include "cuda/tiles.cuh"

namespace kernelbench_dist::cuda {
namespace {

using namespace tiles;

constexpr int kRows = kSplitFloatRows, kOutputs = kSplitFloatOutputs;
constexpr int kXBytes = kRows * kRowBytes, kOperands = kXBytes + kOutputs * kRowBytes;
constexpr int kSlot = 2 * kOperands;  // the first parts, where the operands were, and the second
constexpr int kStages = stages_of(2 * (kRows + kOutputs), kSharedBytes - 1024);
constexpr int kShared = kStages * kSlot + kSwizzleBytes;
constexpr int kSplitters = 96;  // threads
// Two warpgroups multiply, 64 rows each; the third copies (one warp) and splits (three).
constexpr int kThreads = 3 * kWarpgroup, kFew = 88, kMany = 208;
static_assert(kWarpgroup * kFew + 2 * kWarpgroup * kMany <= 65536);
static_assert(kRows == 128 && kStages >= 3);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// To the nearest TF32, ties away from 0. What would become infinite is cut off instead, so that the
// parts of a finite number are finite.
__device__ __forceinline__ uint32_t nearest_tf32(uint32_t bits) {
  constexpr uint32_t kKept = 0xffffe000, kInf = 0x7f800000;
  const uint32_t rounded = (bits + 0x1000) & kKept;
  return (rounded & kInf) == kInf ? bits & kKept : rounded;
}

// v becomes its first part; returns the second. Inf and NaN have no second part: Inf - Inf is NaN.
__device__ __forceinline__ float split_off(float& v) {
  const uint32_t bits = __float_as_uint(v);
  if ((bits & 0x7f800000) == 0x7f800000) {
    if (v != v)
      v = __uint_as_float(0x7fc00000);  // some NaNs differ from Inf in the lowest bits only
    return 0;
  }
  const float first = __uint_as_float(nearest_tf32(bits));
  const float rest = v - first;  // exact
  v = first;
  return __uint_as_float(nearest_tf32(__float_as_uint(rest)));
}

// All of a slot, by the kSplitters threads.
__device__ __forceinline__ void split_slot(char* slot, int thread) {
#pragma unroll 4
  for (int at = thread * 16; at < kOperands; at += kSplitters * 16) {
    float4& first = *reinterpret_cast<float4*>(slot + at);
    float4 v = first, rest;
    rest.x = split_off(v.x);
    rest.y = split_off(v.y);
    rest.z = split_off(v.z);
    rest.w = split_off(v.w);
    first = v;
    *reinterpret_cast<float4*>(slot + kOperands + at) = rest;
  }
}

#endif

__global__ void __launch_bounds__(kThreads, 1) persistent3(const __grid_constant__ Parameters p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t memory[];
  __shared__ uint64_t barriers[3 * kStages];
  const uint32_t start = hopper::shared_address(memory);
  const uint32_t aligned = (start + kSwizzleBytes - 1) & ~(kSwizzleBytes - 1u);
  const Ring<kStages, kSlot> ring{aligned, hopper::shared_address(barriers)};
  // That a slot has been split.
  const auto ready = [&](uint32_t n) {
    return hopper::shared_address(barriers + 2 * kStages + n % kStages);
  };
  const int warp = warp_number(), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) hopper::init_barrier(ready(s), kSplitters / 32);
    ring.init(8);
  }
  __syncthreads();

  const Tiling tiling{(p.B + kRows - 1) / kRows, (p.K + kOutputs - 1) / kOutputs};
  const int tiles = tiling.down * tiling.across;
  const int steps = p.R * ((p.H + kFeatures<float> - 1) / kFeatures<float>);

  if (warp >= 8) {
    hopper::give_back_registers<kFew>();
    if (warp == 8 && lane == 0) {
      uint32_t n = 0;
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int i, j;
        tiling.place(tile, i, j);
        for (int r = 0; r < p.R; ++r) {
          for (int h = 0; h < p.H; h += kFeatures<float>, ++n) {
            ring.wait_empty(n);
            hopper::arrive_expecting(ring.full(n), kOperands);
            copy_rows(p.x, ring.slot(n), ring.full(n), h, i * kRows, r);
            copy_rows(p.weight, ring.slot(n) + kXBytes, ring.full(n), h, j * kOutputs, r);
          }
        }
      }
    } else if (warp > 8) {
      uint32_t n = 0;
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        for (int s = 0; s < steps; ++s, ++n) {
          ring.wait_full(n);
          char* const slot = reinterpret_cast<char*>(memory) + (ring.slot(n) - start);
          split_slot(slot, threadIdx.x - 9 * 32);
          hopper::publish_stores();
          __syncwarp();
          if (lane == 0) hopper::arrive(ready(n));
        }
      }
    }
  } else {
    hopper::take_registers<kMany>();
    const int below = warp / 4 * 64;
    uint32_t n = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      float sum[1][kOutputs / 2], part[1][kOutputs / 2];
#pragma unroll
      for (float& s : sum[0]) s = 0;
      for (int s = 0; s < steps; ++s, ++n) {
        hopper::wait(ready(n), n / kStages & 1);
        const uint32_t x1 = ring.slot(n) + below * kRowBytes, w1 = ring.slot(n) + kXBytes;
        multiply_step<float, 1, kOutputs>(part, x1 + kOperands, w1, false);
        multiply_step<float, 1, kOutputs>(part, x1, w1 + kOperands, true);
        hopper::wait_products<0>();
        hopper::pin(part[0]);
        // A second part of 0 times Inf is NaN, where the product itself may be Inf: what is not
        // finite comes from the first parts alone.
#pragma unroll
        for (float& v : part[0]) v = fabsf(v) < INFINITY ? v : 0;
        multiply_step<float, 1, kOutputs>(part, x1, w1, true);
        hopper::wait_products<0>();
        hopper::pin(part[0]);
        if (lane == 0) hopper::arrive(ring.empty(n));
#pragma unroll
        for (int i = 0; i < kOutputs / 2; ++i) sum[0][i] += part[0][i];
      }
      int i, j;
      tiling.place(tile, i, j);
      store_tile<float, 1, kOutputs>(p, sum, i * kRows + below, j * kOutputs);
    }
  }
#else
  __trap();
#endif
}

}  // namespace

int launch_all_gather_linear_3xtf32(const AllGatherLinear& c, CUstream_st* stream) {
  if (c.type != Scalar::f32 || tiles_refuse(c)) return cudaErrorInvalidValue;
  Parameters p = parameters_of(c);
  constexpr auto kAsItIs = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  if (!describe<float, kAsItIs>(p.x, c.x, c.H, c.B, c.x_row, c.R, c.x_rank, kRows) ||
      !describe<float, kAsItIs>(p.weight, c.weight, c.H, c.K, c.w_output, c.R, c.H, kOutputs)) {
    return cudaErrorInvalidValue;
  }
  int device, processors;
  if (const int error = device_and_processors(device, processors)) return error;
  static std::atomic<uint64_t> prepared{0};
  const void* kernel = reinterpret_cast<const void*>(persistent3);
  if (const int error = prepare(kernel, kShared, prepared, device)) return error;
  const int64_t tiles = ((c.B + kRows - 1) / kRows) * ((c.K + kOutputs - 1) / kOutputs);
  return launch_clusters(persistent3, std::min<int64_t>(tiles, processors), 1, kThreads, kShared,
                         stream, p);
}

}  // namespace kernelbench_dist::cuda
