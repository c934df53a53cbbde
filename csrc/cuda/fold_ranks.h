// The fold of one buffer a rank, for the bindings: see fold_ranks.cu.
#pragma once

#include <cstdint>

#include "cuda/scalar.h"

struct CUstream_st;

namespace kernelbench_dist::cuda {

enum class FoldOp { sum, avg, prod, min, max };

// Their addresses travel with the launch, in 4 KiB.
inline constexpr int kMostFoldRanks = 128;

struct FoldRanks {
  Scalar type;
  FoldOp op;
  int ranks, outs;
  int64_t count;  // elements of each
  const void* x[kMostFoldRanks];
  void* out[kMostFoldRanks];
};

// Returns a cudaError_t.
int launch_fold_ranks(const FoldRanks& call, CUstream_st* stream);

}  // namespace kernelbench_dist::cuda
