// All-gather on the last dim, then Linear, on Hopper's tensor cores, with no gathered copy:
//
//   out[b, k] = bias[k] + sum over r < R and h < H of x[r, b, h] * weight[k, r*H + h]
//
// Both operands are rank-3 tensors to the copy engine: x (h, b, r) and weight (h, r, k). A step
// takes the features h to h + kFeatures of one rank, 128 bytes of each row, so that no step
// straddles two ranks, and what is beyond H is filled with zeros in both operands. (With a flat map
// of weight, the next rank's weights would stand there, and 0 times their Inf is NaN.)
//
// One warp, the producer, copies the boxes of step after step into a ring of `stages` slots; the
// other warps, in groups of four, multiply from there. Barrier full[s] says that slot s has been
// filled, empty[s] that all who read it are done. docs/kernels.md draws it.
//
// Two kernels: `persistent` for many rows, `split` for few. Sums are in fp32, in an order fixed by
// the sizes and the way, so every run gives the same bits.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <utility>

#include "cuda/all_gather_linear_tiles.h"
#include "cuda/hopper.cuh"
#include "cuda/scalars.cuh"

namespace kernelbench_dist::cuda {
namespace {

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

#endif

// ---- persistent: tiles of `rows` x `outputs`, one after another

template <int WAY>
struct Persistent {
  static constexpr TileWay W = kTileWays[WAY];
  // Two warpgroups multiply; of the third only one thread works, but the registers that it gives
  // back are the others' (setmaxnreg is for whole warpgroups): 168 each at first, as
  // __launch_bounds__ has it, and then 128 * kFew + 256 * kMany of the 65536.
  static constexpr int kThreads = 3 * kWarpgroup, kFew = 40, kMany = 232;
  static_assert(kWarpgroup * kFew + 2 * kWarpgroup * kMany <= 65536);
  static constexpr int kReaders = W.shared ? 2 : 1;      // warpgroups that read one slot
  static constexpr int kTiles = W.rows / 64 / kReaders;  // of 64 rows, in one warpgroup
  static constexpr int kXBytes = W.rows * kRowBytes, kWeightBytes = W.outputs * kRowBytes;
  static constexpr int kSlot = kXBytes + kWeightBytes;
  static constexpr int kStages = stages_of(W.rows + W.outputs, kSharedBytes - 1024);
  static constexpr int kShared = kStages * kSlot + kSwizzleBytes;  // and the barriers, static
  static constexpr int kOutputsOfBox = W.outputs / W.blocks;       // weights that one block copies
  static_assert(W.rows == 64 * kTiles * kReaders && W.outputs % 32 == 0);
  static_assert(W.outputs <= 256 && W.rows <= 256, "a box has at most 256 rows");
  static_assert(kXBytes % kSwizzleBytes == 0 && kOutputsOfBox * kRowBytes % kSwizzleBytes == 0);
  static_assert(kStages >= 3 && kTiles * W.outputs / 2 <= 128, "registers");
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

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

template <typename T, int WAY>
__global__ void __launch_bounds__(Persistent<WAY>::kThreads, 1)
    persistent(const __grid_constant__ Parameters p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = Persistent<WAY>;
  constexpr TileWay W = S::W;
  extern __shared__ uint8_t memory[];
  __shared__ uint64_t barriers[2 * S::kStages + 2];
  const uint32_t start = hopper::shared_address(memory);
  const Ring<S::kStages, S::kSlot> ring{(start + kSwizzleBytes - 1) & ~(kSwizzleBytes - 1u),
                                        hopper::shared_address(barriers)};
  const int warp = warp_number(), lane = threadIdx.x % 32;
  const int rank = W.blocks > 1 ? hopper::rank_in_cluster() : 0;
  // Where the warpgroups take turns: turn[g] says that group g may go on with the ring.
  const auto turn = [&](int g) { return hopper::shared_address(barriers + 2 * S::kStages + g); };
  if (threadIdx.x == 0) {
    for (int g = 0; g < 2; ++g) hopper::init_barrier(turn(g), 4);
    ring.init(S::kReaders * 4 * W.blocks);
  }
  if constexpr (W.blocks > 1) {
    hopper::cluster_sync();
  } else {
    __syncthreads();
  }

  constexpr int kDown = W.rows * W.blocks;  // rows of a cluster's tile
  const Tiling tiling{(p.B + kDown - 1) / kDown, (p.K + W.outputs - 1) / W.outputs};
  const int tiles = tiling.down * tiling.across;
  const int first = blockIdx.x / W.blocks, step = gridDim.x / W.blocks;
  const int steps = p.R * ((p.H + kFeatures<T> - 1) / kFeatures<T>);  // of each tile

  if (warp >= 8) {
    hopper::give_back_registers<S::kFew>();
    if (warp == 8 && lane == 0) {
      hopper::prefetch_map(p.x.map);
      hopper::prefetch_map(p.weight.map);
      uint32_t n = 0;
      for (int tile = first; tile < tiles; tile += step) {
        int i, j;
        tiling.place(tile, i, j);
        const int row = i * kDown + rank * W.rows, output = j * W.outputs;
        for (int r = 0; r < p.R; ++r) {
          for (int h = 0; h < p.H; h += kFeatures<T>, ++n) {
            ring.wait_empty(n);
            const uint32_t full = ring.full(n), x = ring.slot(n), weight = x + S::kXBytes;
            hopper::arrive_expecting(full, S::kSlot);
            copy_rows(p.x, x, full, h, row, r);
            if constexpr (W.blocks > 1) {
              // Each block copies its part of the weights to all.
              const int part = rank * S::kOutputsOfBox;
              hopper::copy_box_to_blocks(p.weight.map, weight + part * kRowBytes, full, h,
                                         p.weight.rank_second ? r : output + part,
                                         p.weight.rank_second ? output + part : r,
                                         (1 << W.blocks) - 1);
            } else {
              copy_rows(p.weight, weight, full, h, output, r);
            }
          }
        }
      }
    }
  } else {
    hopper::take_registers<S::kMany>();
    const int group = warp / 4;
    const int below = W.shared ? group * 64 * S::kTiles : 0;  // rows of the tile above this group's
    const auto release = [&](uint32_t n) {  // each warp tells each block that may write there
      if constexpr (S::W.blocks > 1) {
        if (lane < S::W.blocks) hopper::arrive_in_block(ring.empty(n), lane);
      } else {
        if (lane == 0) hopper::arrive(ring.empty(n));
      }
    };
    // Where each warpgroup has its own tiles, it has every second one. It waits until the other one
    // is through with the ring for the tile before: else it would be products ahead of those
    // copied, and a barrier's parity tells only a phase from the next.
    const int begin = W.shared ? first : first + group * step, stride = W.shared ? step : 2 * step;
    uint32_t n = W.shared ? 0 : group * steps;
    float sum[S::kTiles][W.outputs / 2];
    uint32_t round = 0;
    for (int tile = begin; tile < tiles; tile += stride, n += W.shared ? 0 : steps, ++round) {
      // Group 0 begins: its turn number `round` is granted after round tiles of the other group,
      // that of group 1 after round + 1.
      if constexpr (!S::W.shared) hopper::wait(turn(group), (round + (group == 0)) & 1);
      for (int s = 0; s < steps; ++s, ++n) {
        ring.wait_full(n);
        const uint32_t x = ring.slot(n), weight = x + S::kXBytes;
        multiply_step<T, S::kTiles, W.outputs>(sum, x + below * kRowBytes, weight, s > 0);
        if (s > 0) {
          hopper::wait_products<1>();
          release(n - 1);
        }
      }
      if constexpr (!S::W.shared) {
        if (lane == 0) hopper::arrive(turn(1 - group));
      }
      hopper::wait_products<0>();
#pragma unroll
      for (int i = 0; i < S::kTiles; ++i) hopper::pin(sum[i]);
      release(n - 1);
      int i, j;
      tiling.place(tile, i, j);
      store_tile<T, S::kTiles, W.outputs>(p, sum, i * kDown + rank * W.rows + below, j * W.outputs);
    }
  }
  // No block leaves while another may still write into it, or tell its barriers something.
  if constexpr (W.blocks > 1) hopper::cluster_sync();
#else
  __trap();
#endif
}

// ---- split: weights as the 64 rows of wgmma and ROWS rows of x as its columns. The blocks of a
// cluster share out the steps of one tile; then each adds up part of it, in their order.

template <int ROWS>
struct Split {
  static constexpr int kOutputs = 64;
  static constexpr int kThreads = kWarpgroup + 32;
  static constexpr int kWeightBytes = kOutputs * kRowBytes, kXBytes = ROWS * kRowBytes;
  static constexpr int kSlot = kWeightBytes + kXBytes;
  static constexpr int kPitch = kOutputs + 4;  // floats of a row of the sums
  static constexpr int kSums = ROWS * kPitch * sizeof(float);
  // Two blocks to a multiprocessor.
  static constexpr int kStages = stages_of(kOutputs + ROWS, kSharedBytes / 2 - kSums - 1024);
  static constexpr int kShared = kStages * kSlot + kSwizzleBytes;
  static_assert(kXBytes % kSwizzleBytes == 0 && kStages >= 4);
};

template <typename T, int ROWS>
__global__ void __launch_bounds__(Split<ROWS>::kThreads, 2)
    split(const __grid_constant__ Parameters p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = Split<ROWS>;
  extern __shared__ uint8_t memory[];
  __shared__ uint64_t barriers[2 * S::kStages];
  __shared__ alignas(16) float sums[ROWS][S::kPitch];
  const uint32_t start = hopper::shared_address(memory);
  const Ring<S::kStages, S::kSlot> ring{(start + kSwizzleBytes - 1) & ~(kSwizzleBytes - 1u),
                                        hopper::shared_address(barriers)};
  const int warp = warp_number(), lane = threadIdx.x % 32;
  const int rank = hopper::rank_in_cluster(), blocks = hopper::blocks_in_cluster();
  if (threadIdx.x == 0) ring.init(4);
  __syncthreads();

  const int across = (p.K + S::kOutputs - 1) / S::kOutputs, tile = blockIdx.x / blocks;
  const int output = tile % across * S::kOutputs, row = tile / across * ROWS;
  const int of_rank = (p.H + kFeatures<T> - 1) / kFeatures<T>, all = p.R * of_rank;
  // This block's steps; none where there are fewer than blocks.
  const int begin = static_cast<int>(int64_t{all} * rank / blocks);
  const int end = static_cast<int>(int64_t{all} * (rank + 1) / blocks);

  if (warp == 4) {
    if (lane == 0) {
      for (int s = begin; s < end; ++s) {
        const int n = s - begin, r = s / of_rank, h = (s - r * of_rank) * kFeatures<T>;
        ring.wait_empty(n);
        const uint32_t full = ring.full(n), weight = ring.slot(n);
        hopper::arrive_expecting(full, S::kSlot);
        copy_rows(p.weight, weight, full, h, output, r);
        copy_rows(p.x, weight + S::kWeightBytes, full, h, row, r);
      }
    }
  } else {
    float sum[1][ROWS / 2];
#pragma unroll
    for (float& s : sum[0]) s = 0;
    for (int s = begin; s < end; ++s) {
      const int n = s - begin;
      ring.wait_full(n);
      multiply_step<T, 1, ROWS>(sum, ring.slot(n), ring.slot(n) + S::kWeightBytes, true);
      if (n > 0) {
        hopper::wait_products<1>();
        if (lane == 0) hopper::arrive(ring.empty(n - 1));
      }
    }
    hopper::wait_products<0>();
    hopper::pin(sum[0]);
#pragma unroll
    for (int i = 0; i < ROWS / 2; ++i) {
      sums[i / 4 * 8 + lane % 4 * 2 + i % 2][warp * 16 + lane / 4 + i / 2 % 2 * 8] = sum[0][i];
    }
  }
  hopper::cluster_sync();

  // 16 threads to a row, with four outputs each; the rows go round the blocks.
  if (warp < 4) {
    const int k = threadIdx.x % 16 * 4;
    const T* bias = static_cast<const T*>(p.bias);
    for (int m = threadIdx.x / 16 * blocks + rank; m < ROWS; m += kWarpgroup / 16 * blocks) {
      float v[4] = {};
      for (int block = 0; block < blocks; ++block) {
        const uint32_t mine = hopper::shared_address(&sums[m][k]);
        const float4 part = hopper::load_from_block(hopper::in_block(mine, block));
        v[0] += part.x;
        v[1] += part.y;
        v[2] += part.z;
        v[3] += part.w;
      }
      if (row + m >= p.B) continue;
      T* const to = static_cast<T*>(p.out) + int64_t{row + m} * p.K;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = output + k + i;
        if (at < p.K) store(to + at, v[i] + (bias ? widen(bias[at * p.b_output]) : 0.0f));
      }
    }
  }
  hopper::cluster_sync();  // no block leaves while another reads its sums
#else
  __trap();
#endif
}

// ---- Launching

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found at run time: a build must not need the driver's library.
Encode find_encode() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                             12000, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<Encode>(found);
}

// Of a dimension of one element the stride is never used, but it must be one that TMA takes.
template <typename T>
bool describe(Operand& operand, const void* data, int64_t H, int64_t rows, int64_t row_stride,
              int64_t R, int64_t rank_stride, int box_rows) {
  static const Encode encode = find_encode();
  if (!encode) return false;
  constexpr auto kType = sizeof(T) == 4       ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                         : hopper::kIsHalf<T> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                              : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
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
  return encode(&operand.map, kType, 3, const_cast<void*>(data), sizes, strides, box, every,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Sets up one kernel, once on each device: more shared memory than a kernel gets unasked.
int prepare(const void* kernel, int shared, std::atomic<uint64_t>& prepared, int device) {
  const uint64_t bit = uint64_t{1} << device % 64;
  if (device < 64 && prepared.load(std::memory_order_acquire) & bit) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error == cudaSuccess) prepared.fetch_or(bit, std::memory_order_release);
  return error;
}

template <typename T, int WAY>
int launch_tiles(const AllGatherLinear& c, cudaStream_t stream) {
  constexpr TileWay W = kTileWays[WAY];
  constexpr bool kSplits = W.kernel == TileWay::split;
  constexpr int kXBox = W.rows, kWeightBox = kSplits ? W.outputs : W.outputs / W.blocks;
  Parameters p{.bias = c.bias,
               .out = c.out,
               .b_output = c.b_output,
               .R = static_cast<int>(c.R),
               .B = static_cast<int>(c.B),
               .H = static_cast<int>(c.H),
               .K = static_cast<int>(c.K)};
  if (!describe<T>(p.x, c.x, c.H, c.B, c.x_row, c.R, c.x_rank, kXBox) ||
      !describe<T>(p.weight, c.weight, c.H, c.K, c.w_output, c.R, c.H, kWeightBox)) {
    return cudaErrorInvalidValue;
  }
  int device, processors;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (const cudaError_t error =
          cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
      error != cudaSuccess) {
    return error;
  }

  const auto over = [](int64_t size, int64_t part) { return (size + part - 1) / part; };
  void (*kernel)(Parameters);
  int threads, shared;
  int64_t clusters = over(c.K, W.outputs);
  if constexpr (kSplits) {
    kernel = split<T, W.rows>;
    threads = Split<W.rows>::kThreads;
    shared = Split<W.rows>::kShared;
    clusters *= over(c.B, W.rows);
  } else {
    kernel = persistent<T, WAY>;
    threads = Persistent<WAY>::kThreads;
    shared = Persistent<WAY>::kShared;
    clusters = std::min<int64_t>(clusters * over(c.B, W.rows * W.blocks), processors / W.blocks);
  }
  static std::atomic<uint64_t> prepared{0};
  const int error = prepare(reinterpret_cast<const void*>(kernel), shared, prepared, device);
  if (error != cudaSuccess) return error;

  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {unsigned(W.blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * W.blocks));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, p);
}

template <typename T, int... WAYS>
int launch_tile_way(const AllGatherLinear& call, int way, cudaStream_t stream,
                    std::integer_sequence<int, WAYS...>) {
  using Launcher = int (*)(const AllGatherLinear&, cudaStream_t);
  static constexpr Launcher kLaunchers[] = {launch_tiles<T, WAYS>...};
  return kLaunchers[way](call, stream);
}

// Of two builds of this kernel in one library, the driver loads the one that fits the device best;
// how much shared memory it has tells which.
constexpr int kProbeBytes = 256;
__global__ void probe_tiles(int* out) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  __shared__ int held[kProbeBytes / sizeof(int)];
  held[threadIdx.x] = *out;
  __syncthreads();
  *out = held[threadIdx.x ^ 1];
#endif
}

}  // namespace

int launch_all_gather_linear_tiles(const AllGatherLinear& call, int way, CUstream_st* stream) {
  if (way < 0 || way >= kTileWayCount || tiles_refuse(call)) return cudaErrorInvalidValue;
  constexpr auto kWayNumbers = std::make_integer_sequence<int, kTileWayCount>();
  switch (call.type) {
    case Scalar::f32:
      return launch_tile_way<float>(call, way, stream, kWayNumbers);
    case Scalar::f16:
      return launch_tile_way<__half>(call, way, stream, kWayNumbers);
    case Scalar::bf16:
      return launch_tile_way<__nv_bfloat16>(call, way, stream, kWayNumbers);
    default:
      return cudaErrorInvalidValue;
  }
}

bool tiles_run_on_current_device() {
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, probe_tiles) != cudaSuccess) {
    cudaGetLastError();  // the caller goes another way: leave no error behind
    return false;
  }
  return attributes.sharedSizeBytes >= kProbeBytes;
}

}  // namespace kernelbench_dist::cuda
