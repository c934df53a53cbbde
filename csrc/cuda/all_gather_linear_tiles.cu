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
#include <algorithm>
#include <atomic>
#include <utility>

#include "cuda/all_gather_linear_tiles.h"
#include "cuda/tiles.cuh"

namespace kernelbench_dist::cuda {
namespace {

using namespace tiles;

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

template <typename T, int WAY>
int launch_tiles(const AllGatherLinear& c, cudaStream_t stream) {
  constexpr TileWay W = kTileWays[WAY];
  constexpr bool kSplits = W.kernel == TileWay::split;
  constexpr int kXBox = W.rows, kWeightBox = kSplits ? W.outputs : W.outputs / W.blocks;
  Parameters p = parameters_of(c);
  if (!describe<T>(p.x, c.x, c.H, c.B, c.x_row, c.R, c.x_rank, kXBox) ||
      !describe<T>(p.weight, c.weight, c.H, c.K, c.w_output, c.R, c.H, kWeightBox)) {
    return cudaErrorInvalidValue;
  }
  int device, processors;
  if (const int error = device_and_processors(device, processors)) return error;
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
  if (const int error = prepare(reinterpret_cast<const void*>(kernel), shared, prepared, device)) {
    return error;
  }
  return launch_clusters(kernel, clusters, W.blocks, threads, shared, stream, p);
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
