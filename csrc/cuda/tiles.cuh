// What the tiles of all_gather_linear for Hopper's tensor cores are made of: the operands as tensor
// maps, the ring of shared memory, products of a step, and how a tile is stored and a kernel
// launched. all_gather_linear_tiles.cu says how they come together.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "cuda/all_gather_linear.h"
#include "cuda/hopper.cuh"
#include "cuda/scalars.cuh"

namespace kernelbench_dist::cuda::tiles {

// ---- Sizes

constexpr int kRowBytes = 128;            // of each row in a step: the width of TMA's swizzle
constexpr int kProductBytes = 32;         // of each row in one wgmma
constexpr int kSwizzleBytes = 1024;       // 8 rows: slots start on such a boundary
constexpr int kSharedBytes = 227 * 1024;  // of a block, barriers and alignment included
constexpr int kWarpgroup = 128;

template <typename T>
constexpr int kFeatures = kRowBytes / sizeof(T);  // of a step

// The ring, as deep as fits into `bytes` of shared memory.
constexpr int stages_of(int rows, int bytes) {
  return std::min(12, (bytes - kSwizzleBytes) / (rows * kRowBytes));
}

// One operand: `rows` rows for each of R ranks. The tensor map's second and third dimension are the
// two in the order of their strides.
struct Operand {
  CUtensorMap map;
  bool rank_second;
};

struct Parameters {
  Operand x, weight;
  const void* bias;
  void* out;
  int64_t b_output;
  int R, B, H, K;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Of this block. Read from one lane, so that the compiler sees that it is the same in all, and
// keeps what follows from it in uniform registers.
__device__ __forceinline__ int warp_number() { return __shfl_sync(~0u, threadIdx.x / 32, 0); }

__device__ __forceinline__ void copy_rows(const Operand& from, uint32_t to, uint32_t barrier,
                                          int feature, int row, int rank) {
  const int second = from.rank_second ? rank : row, third = from.rank_second ? row : rank;
  hopper::copy_box(from.map, to, barrier, feature, second, third);
}

// The slots of the ring and their barriers. Use n of the ring is of slot n % STAGES.
template <int STAGES, int SLOT_BYTES>
struct Ring {
  uint32_t slots, barriers;

  __device__ __forceinline__ uint32_t slot(uint32_t n) const {
    return slots + n % STAGES * SLOT_BYTES;
  }
  __device__ __forceinline__ uint32_t full(uint32_t n) const { return barriers + n % STAGES * 8; }
  __device__ __forceinline__ uint32_t empty(uint32_t n) const {
    return barriers + (STAGES + n % STAGES) * 8;
  }
  // Parities: the phase in which use n fills its slot, and the one before it that emptied it.
  __device__ __forceinline__ void wait_full(uint32_t n) const {
    hopper::wait(full(n), n / STAGES & 1);
  }
  __device__ __forceinline__ void wait_empty(uint32_t n) const {
    hopper::wait(empty(n), ~(n / STAGES) & 1);
  }
  __device__ __forceinline__ void init(int readers) const {
    for (int s = 0; s < STAGES; ++s) {
      hopper::init_barrier(full(s), 1);
      hopper::init_barrier(empty(s), readers);
    }
    hopper::publish_barriers();
  }
};

// A step's products of one warpgroup: TILES x 64 rows at `a` with N rows at `b`.
template <typename T, int TILES, int N>
__device__ __forceinline__ void multiply_step(float (&sum)[TILES][N / 2], uint32_t a, uint32_t b,
                                              bool add) {
#pragma unroll
  for (int i = 0; i < TILES; ++i) hopper::pin(sum[i]);
  hopper::fence_products();
  const uint64_t from_a = hopper::descriptor(a), from_b = hopper::descriptor(b);
#pragma unroll
  for (int at = 0; at < kRowBytes; at += kProductBytes) {
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      hopper::multiply<T, N>(sum[i], from_a + (i * 64 * kRowBytes + at) / 16, from_b + at / 16,
                             add || at > 0);
    }
  }
  hopper::commit_products();
#pragma unroll
  for (int i = 0; i < TILES; ++i) hopper::pin(sum[i]);
}

// ---- Storing a tile from the registers of one warpgroup

__device__ __forceinline__ uint32_t pack_two(float a, float b, __half) {
  const __half2 two = __floats2half2_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&two);
}
__device__ __forceinline__ uint32_t pack_two(float a, float b, __nv_bfloat16) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&two);
}

// Two lanes, apart in this bit of their number, swap: the one without the bit keeps `first` and
// gets the other's in `second`; the one with it keeps `second`.
__device__ __forceinline__ void swap_halves(uint32_t& first, uint32_t& second, int bit) {
  const bool upper = threadIdx.x & bit;
  const uint32_t got = __shfl_xor_sync(~0u, upper ? first : second, bit);
  (upper ? first : second) = got;
}

// Elements `column` and `column + 1` of a row of out, where they are inside.
template <typename T>
__device__ __forceinline__ void store_two(T* row, int column, int K, float a, float b) {
  if constexpr (sizeof(T) == 4) {
    if (K % 2 == 0) {
      if (column < K) *reinterpret_cast<float2*>(row + column) = make_float2(a, b);
      return;
    }
  }
  if (column < K) store(row + column, a);
  if (column + 1 < K) store(row + column + 1, b);
}

// sum is as wgmma leaves it: this thread has columns 8 j + 2 q and the next of rows r and r + 8,
// where q = lane % 4. For 16-bit types the four lanes of a row transpose four such pairs, so that
// each stores 16 bytes.
template <typename T, int TILES, int N>
__device__ __forceinline__ void store_tile(const Parameters& p, const float (&sum)[TILES][N / 2],
                                           int first_row, int first_column) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, q = lane % 4;
  const T* bias = static_cast<const T*>(p.bias);
  T* out = static_cast<T*>(p.out);
  const bool wide = sizeof(T) == 2 && p.K % 8 == 0;
#pragma unroll
  for (int j = 0; j < N / 8; j += 4) {
    float biases[4][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = first_column + 8 * (j + i) + 2 * q + c;
        biases[i][c] = bias && column < p.K ? widen(bias[column * p.b_output]) : 0;
      }
    }
#pragma unroll
    for (int half = 0; half < TILES * 2; ++half) {
      const int row = first_row + half / 2 * 64 + warp * 16 + lane / 4 + half % 2 * 8;
      T* const to = out + int64_t{row} * p.K;
      float v[4][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          v[i][c] = sum[half / 2][4 * (j + i) + half % 2 * 2 + c] + biases[i][c];
        }
      }
      if constexpr (sizeof(T) == 2) {
        if (wide) {
          uint32_t w[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) w[i] = pack_two(v[i][0], v[i][1], T{});
          swap_halves(w[0], w[1], 1);
          swap_halves(w[2], w[3], 1);
          swap_halves(w[0], w[2], 2);
          swap_halves(w[1], w[3], 2);
          const int column = first_column + 8 * (j + q);
          if (row < p.B && column < p.K) {
            *reinterpret_cast<uint4*>(to + column) = make_uint4(w[0], w[1], w[2], w[3]);
          }
          continue;
        }
      }
      if (row < p.B) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          store_two(to, first_column + 8 * (j + i) + 2 * q, p.K, v[i][0], v[i][1]);
        }
      }
    }
  }
}

// ---- Sharing tiles out

// The tiles of a cluster's blocks lie one below the other and are counted as one. They are taken in
// bands of rows, so that those at work at one time share few rows of x and of weight.
struct Tiling {
  static constexpr int kBand = 8;
  int down, across;  // tiles

  __device__ __forceinline__ void place(int tile, int& i, int& j) const {
    const int band = tile / (kBand * across) * kBand, within = tile - band * across;
    const int height = min(kBand, down - band);
    i = band + within % height;
    j = within / height;
  }
};

#endif

// ---- Launching

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found at run time: a build must not need the driver's library.
inline Encode find_encode() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                             12000, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<Encode>(found);
}

// As the tensor cores read it: the copy engine rounds fp32 to TF32.
template <typename T>
constexpr CUtensorMapDataType kMapType = sizeof(T) == 4       ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                                         : hopper::kIsHalf<T> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                              : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;

// Of a dimension of one element the stride is never used, but it must be one that TMA takes.
template <typename T, CUtensorMapDataType TYPE = kMapType<T>>
bool describe(Operand& operand, const void* data, int64_t H, int64_t rows, int64_t row_stride,
              int64_t R, int64_t rank_stride, int box_rows) {
  static const Encode encode = find_encode();
  if (!encode) return false;
  const auto bytes = [H](int64_t size, int64_t stride) -> cuuint64_t {
    return size == 1 ? (H * sizeof(T) + 15) / 16 * 16 : stride * sizeof(T);
  };
  const cuuint64_t row_bytes = bytes(rows, row_stride), rank_bytes = bytes(R, rank_stride);
  operand.rank_second = rank_bytes < row_bytes;
  cuuint64_t sizes[3] = {cuuint64_t(H), cuuint64_t(rows), cuuint64_t(R)};
  cuuint64_t strides[2] = {row_bytes, rank_bytes};
  cuuint32_t box[3] = {cuuint32_t(kFeatures<T>), cuuint32_t(box_rows), 1};
  const cuuint32_t every[3] = {1, 1, 1};
  if (operand.rank_second) {
    std::swap(sizes[1], sizes[2]);
    std::swap(strides[0], strides[1]);
    std::swap(box[1], box[2]);
  }
  return encode(&operand.map, TYPE, 3, const_cast<void*>(data), sizes, strides, box, every,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Sets up one kernel, once on each device: more shared memory than a kernel gets unasked.
inline int prepare(const void* kernel, int shared, std::atomic<uint64_t>& prepared, int device) {
  const uint64_t bit = uint64_t{1} << device % 64;
  if (device < 64 && prepared.load(std::memory_order_acquire) & bit) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error == cudaSuccess) prepared.fetch_or(bit, std::memory_order_release);
  return error;
}

// All but the tensor maps.
inline Parameters parameters_of(const AllGatherLinear& c) {
  return {.bias = c.bias,
          .out = c.out,
          .b_output = c.b_output,
          .R = static_cast<int>(c.R),
          .B = static_cast<int>(c.B),
          .H = static_cast<int>(c.H),
          .K = static_cast<int>(c.K)};
}

inline int device_and_processors(int& device, int& processors) {
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
}

inline int launch_clusters(void (*kernel)(Parameters), int64_t clusters, int blocks, int threads,
                           int shared, cudaStream_t stream, const Parameters& p) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {unsigned(blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * blocks));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, p);
}

}  // namespace kernelbench_dist::cuda::tiles
