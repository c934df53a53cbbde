// All-gather on the last dim, then Linear, for small outputs: straight from global memory, with no
// shared memory and no barrier.
//
//   out[b, k] = bias[k] + sum over i < R*H of x[i / H, b, i % H] * weight[k, i]
//
// A group of LANES lanes of one warp owns ROWS x OUTPUTS elements of out. Lane l takes the packs
// l, l + LANES, ... of the inner index i; the group then adds up its partial sums by shuffles, in
// an order fixed by the template, so that every run gives the same bits. A block's groups stand
// side by side along K and share the rows of x through the L1 cache.
#include <cuda_runtime.h>

#include <utility>

#include "cuda/all_gather_linear.h"
#include "cuda/scalars.cuh"

namespace kernelbench_dist::cuda {
namespace {

template <typename T>
struct Parameters {
  const T* x;
  const T* weight;
  const T* bias;
  T* out;
  int B, K, inner;  // inner = R * H, the products of each output
  Divider H;        // splits an inner index into (rank, feature)
  int x_rank, x_row, x_feature, w_output, w_feature, b_output;

  explicit Parameters(const AllGatherLinear& c)
      : x(static_cast<const T*>(c.x)),
        weight(static_cast<const T*>(c.weight)),
        bias(static_cast<const T*>(c.bias)),
        out(static_cast<T*>(c.out)),
        B(static_cast<int>(c.B)),
        K(static_cast<int>(c.K)),
        inner(static_cast<int>(c.R * c.H)),
        H(static_cast<uint32_t>(c.H)),
        x_rank(static_cast<int>(c.x_rank)),
        x_row(static_cast<int>(c.x_row)),
        x_feature(static_cast<int>(c.x_feature)),
        w_output(static_cast<int>(c.w_output)),
        w_feature(static_cast<int>(c.w_feature)),
        b_output(static_cast<int>(c.b_output)) {}

  // Where inner index i is in row 0 of x and of weight. With packs the features lie side by side.
  template <int V>
  __device__ __forceinline__ uint32_t x_offset(uint32_t i) const {
    uint32_t rank, feature;
    H.divide(i, rank, feature);
    return rank * x_rank + (V > 1 ? feature : feature * x_feature);
  }
  template <int V>
  __device__ __forceinline__ uint32_t w_offset(uint32_t i) const {
    return V > 1 ? i : i * w_feature;
  }
};

// Whether 16-byte loads are legal: features side by side, every row on a 16-byte boundary, and no
// load across two ranks. The stride of a dimension of one element is never used, so may be
// anything.
template <typename T>
bool packs_align(const AllGatherLinear& c) {
  constexpr int64_t kPack = kFullPack<T>;
  const auto whole = [](int64_t size, int64_t stride) { return size == 1 || stride % kPack == 0; };
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  return c.H % kPack == 0 && c.x_feature == 1 && c.w_feature == 1 && whole(c.R, c.x_rank) &&
         whole(c.B, c.x_row) && whole(c.K, c.w_output) &&
         (address(c.x) | address(c.weight)) % 16 == 0;
}

// V: elements in a load. LOOPS: whether a lane may have more than one load of each row; the kernel
// without the loop is a third of the size, and fetching its instructions is much of a small call.
template <typename T, int V, bool LOOPS, int WAY>
__global__ void __launch_bounds__(kWays[WAY].threads) dot(const Parameters<T> p) {
  using Acc = accumulator_t<T>;
  constexpr int ROWS = kWays[WAY].rows, OUTPUTS = kWays[WAY].outputs, LANES = kWays[WAY].lanes;
  const int lane = threadIdx.x % LANES;
  const int k0 = (blockIdx.x * (kWays[WAY].threads / LANES) + threadIdx.x / LANES) * OUTPUTS;
  const int b0 = blockIdx.y * ROWS;

  // Rows past the end repeat the last one: what they compute is not stored.
  uint32_t x_row[ROWS], w_row[OUTPUTS];
  Acc bias[OUTPUTS] = {};
#pragma unroll
  for (int m = 0; m < ROWS; ++m) x_row[m] = min(b0 + m, p.B - 1) * p.x_row;
#pragma unroll
  for (int n = 0; n < OUTPUTS; ++n) {
    const int k = min(k0 + n, p.K - 1);
    w_row[n] = k * p.w_output;
    if (p.bias)
      bias[n] = widen(p.bias[k * p.b_output]);  // here, so that it is on its way with the rest
  }

  Acc sum[ROWS][OUTPUTS] = {};
  const auto add_products = [&](int i) {
    const uint32_t x_at = p.template x_offset<V>(i), w_at = p.template w_offset<V>(i);
    Pack<T, V> xs[ROWS], ws[OUTPUTS];
#pragma unroll
    for (int m = 0; m < ROWS; ++m) xs[m] = load_pack<T, V>(p.x + (x_row[m] + x_at));
#pragma unroll
    for (int n = 0; n < OUTPUTS; ++n) {
      ws[n] = load_pack<T, V>(p.weight + (w_row[n] + w_at));
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int m = 0; m < ROWS; ++m) {
#pragma unroll
        for (int n = 0; n < OUTPUTS; ++n) sum[m][n] += widen(xs[m].v[v]) * widen(ws[n].v[v]);
      }
    }
  };
  if constexpr (LOOPS) {
#pragma unroll 2
    for (int i = lane * V; i < p.inner; i += LANES * V) add_products(i);
  } else if (lane * V < p.inner) {
    add_products(lane * V);
  }

#pragma unroll
  for (int m = 0; m < ROWS; ++m) {
#pragma unroll
    for (int n = 0; n < OUTPUTS; ++n) {
#pragma unroll
      for (int apart = LANES / 2; apart > 0; apart /= 2) {
        sum[m][n] += __shfl_xor_sync(~0u, sum[m][n], apart, LANES);
      }
    }
  }

  // Every lane now holds all sums; the elements are stored by different lanes.
#pragma unroll
  for (int m = 0; m < ROWS; ++m) {
#pragma unroll
    for (int n = 0; n < OUTPUTS; ++n) {
      const int b = b0 + m, k = k0 + n;
      if (lane == (m * OUTPUTS + n) % LANES && b < p.B && k < p.K) {
        store(p.out + (b * p.K + k), sum[m][n] + bias[n]);
      }
    }
  }
}

template <typename T, int WAY>
int launch(const AllGatherLinear& call, cudaStream_t stream) {
  constexpr Way w = kWays[WAY];
  constexpr int kOutputs = w.threads / w.lanes * w.outputs;  // of a block
  constexpr int kPack = kFullPack<T>;
  const dim3 grid((call.K + kOutputs - 1) / kOutputs, (call.B + w.rows - 1) / w.rows);
  const auto kernel = !packs_align<T>(call)               ? dot<T, 1, true, WAY>
                      : call.R * call.H > w.lanes * kPack ? dot<T, kPack, true, WAY>
                                                          : dot<T, kPack, false, WAY>;
  kernel<<<grid, w.threads, 0, stream>>>(Parameters<T>(call));
  return cudaGetLastError();
}

template <typename T, int... WAYS>
int launch_way(const AllGatherLinear& call, int way, cudaStream_t stream,
               std::integer_sequence<int, WAYS...>) {
  using Launcher = int (*)(const AllGatherLinear&, cudaStream_t);
  static constexpr Launcher kLaunchers[] = {launch<T, WAYS>...};
  return kLaunchers[way](call, stream);
}

__global__ void probe() {}

}  // namespace

int launch_all_gather_linear(const AllGatherLinear& call, int way, CUstream_st* stream) {
  if (way < 0 || way >= kWayCount) return cudaErrorInvalidValue;
  return with_type(call.type, [&]<typename T>() {
    return launch_way<T>(call, way, stream, std::make_integer_sequence<int, kWayCount>());
  });
}

bool runs_on_current_device() {
  cudaFuncAttributes attributes;
  const bool found = cudaFuncGetAttributes(&attributes, probe) == cudaSuccess;
  if (!found) cudaGetLastError();  // the caller goes another way: leave no error behind
  return found;
}

}  // namespace kernelbench_dist::cuda
