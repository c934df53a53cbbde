// A reduction over ranks whose buffers lie on one device, in one launch:
//
//   out[j][i] = ((x[0][i] op x[1][i]) op x[2][i]) op ... op x[R-1][i]      for each j
//
// It has the bits of the fold in torch's operations (_reductions.fold): fp16 and bf16 accumulate in
// fp32 and round once. Each element of all buffers belongs to one thread, which reads all ranks'
// before it writes any: an out may be an x.
#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "cuda/fold_ranks.h"
#include "cuda/scalars.cuh"

namespace kernelbench_dist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostBlocks = 2048;

// What an element is folded in. Of min and max the bits are those of one of the elements.
template <typename T, FoldOp op>
using fold_t = std::conditional_t<op == FoldOp::min || op == FoldOp::max, T, accumulator_t<T>>;

template <typename Acc, typename T>
__device__ __forceinline__ Acc as(T v) {
  if constexpr (std::is_same_v<Acc, T>) {
    return v;
  } else {
    return widen(v);
  }
}

template <FoldOp op, typename Acc>
__device__ __forceinline__ Acc combine(Acc acc, Acc v) {
  if constexpr (op == FoldOp::min || op == FoldOp::max) {
    // Of two equal ones (zeros with two signs) the first rank's; a NaN stays.
    const auto a = widen(acc), b = widen(v);
    const bool kept = op == FoldOp::min ? a <= b : a >= b;
    return kept || a != a ? acc : v;
  } else {
    return op == FoldOp::prod ? acc * v : acc + v;
  }
}

// V elements from `at` on.
template <typename T, FoldOp op, int V>
__device__ __forceinline__ void fold(const FoldRanks& c, int64_t at) {
  using Acc = fold_t<T, op>;
  using Elements = Pack<T, V>;
  Acc acc[V];
  const auto read = [&](int r) {
    return *reinterpret_cast<const Elements*>(static_cast<const T*>(c.x[r]) + at);
  };
  const Elements first = read(0);
#pragma unroll
  for (int v = 0; v < V; ++v) acc[v] = as<Acc>(first.v[v]);
#pragma unroll 8
  for (int r = 1; r < c.ranks; ++r) {
    const Elements next = read(r);
#pragma unroll
    for (int v = 0; v < V; ++v) acc[v] = combine<op>(acc[v], as<Acc>(next.v[v]));
  }
  Elements result;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if constexpr (op == FoldOp::avg) acc[v] /= static_cast<Acc>(c.ranks);
    if constexpr (std::is_same_v<Acc, T>) {
      result.v[v] = acc[v];
    } else {
      store(&result.v[v], acc[v]);
    }
  }
  for (int j = 0; j < c.outs; ++j) {
    *reinterpret_cast<Elements*>(static_cast<T*>(c.out[j]) + at) = result;
  }
}

template <typename T, FoldOp op, int V>
__global__ void __launch_bounds__(kThreads) fold_ranks(const __grid_constant__ FoldRanks c) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  const int64_t packs = c.count / V;
  for (int64_t i = thread; i < packs; i += threads) fold<T, op, V>(c, i * V);
  if constexpr (V > 1) {
    const int64_t at = packs * V + thread;
    if (at < c.count) fold<T, op, 1>(c, at);
  }
}

template <typename T, FoldOp op, int V>
int launch(const FoldRanks& c, CUstream_st* stream) {
  const int64_t blocks = (c.count / V + kThreads) / kThreads;
  fold_ranks<T, op, V>
      <<<static_cast<int>(std::min<int64_t>(blocks, kMostBlocks)), kThreads, 0, stream>>>(c);
  return static_cast<int>(cudaGetLastError());
}

template <typename T, FoldOp op>
int launch(const FoldRanks& c, CUstream_st* stream) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  const bool all =
      std::all_of(c.x, c.x + c.ranks, aligned) && std::all_of(c.out, c.out + c.outs, aligned);
  return all ? launch<T, op, kFullPack<T>>(c, stream) : launch<T, op, 1>(c, stream);
}

}  // namespace

int launch_fold_ranks(const FoldRanks& call, CUstream_st* stream) {
  return with_type(call.type, [&]<typename T>() {
    switch (call.op) {
      case FoldOp::sum:
        return launch<T, FoldOp::sum>(call, stream);
      case FoldOp::avg:
        return launch<T, FoldOp::avg>(call, stream);
      case FoldOp::prod:
        return launch<T, FoldOp::prod>(call, stream);
      case FoldOp::min:
        return launch<T, FoldOp::min>(call, stream);
      case FoldOp::max:
        return launch<T, FoldOp::max>(call, stream);
    }
    return static_cast<int>(cudaErrorInvalidValue);
  });
}

}  // namespace kernelbench_dist::cuda
