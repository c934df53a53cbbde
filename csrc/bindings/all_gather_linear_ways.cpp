// The CUDA kernels of all_gather_linear by number, and which calls each can compute: known also
// where they are not built.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <atomic>
#include <limits>

#include "bindings/all_gather_linear.h"

#ifdef KERNELBENCH_DIST_CUDA
#include "bindings/cuda_device.h"
#endif

namespace kernelbench_dist {

bool tf32_is_allowed() {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
         at::Float32Precision::TF32;
}

namespace {
std::atomic<bool> three_tf32{false};
}

bool three_tf32_is_allowed() {
  return three_tf32.load(std::memory_order_relaxed) &&
         at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) !=
             at::Float32Precision::IEEE;
}

bool allow_three_tf32(bool allow) { return three_tf32.exchange(allow); }

cuda::AllGatherLinear call_of(const at::Tensor& x, const at::Tensor& weight,
                              const std::optional<at::Tensor>& bias, const Problem& p) {
  return {
      .type = *scalar_of(x.scalar_type()),
      .R = p.R,
      .B = p.B,
      .H = p.H,
      .K = p.K,
      .x = x.const_data_ptr(),
      .weight = weight.const_data_ptr(),
      .bias = bias ? bias->const_data_ptr() : nullptr,
      .out = nullptr,
      .x_rank = x.stride(0),
      .x_row = *p.x_row,
      .x_feature = x.stride(-1),
      .w_output = weight.stride(0),
      .w_feature = weight.stride(1),
      .b_output = bias ? bias->stride(0) : 0,
  };
}

std::string way_name(int way) {
  const auto sizes = [](int rows, int outputs) {
    return std::to_string(rows) + "x" + std::to_string(outputs);
  };
  if (way < cuda::kWayCount) {
    const cuda::Way& w = cuda::kWays[way];
    return "dot " + sizes(w.rows, w.outputs) + " by " + std::to_string(w.lanes);
  }
  if (way == kWay3xTf32) {
    return "3xtf32 " + sizes(cuda::kSplitFloatRows, cuda::kSplitFloatOutputs);
  }
  const cuda::TileWay& w = cuda::kTileWays[way - cuda::kWayCount];
  const std::string tile = sizes(w.rows, w.outputs), blocks = std::to_string(w.blocks);
  if (w.kernel == cuda::TileWay::split) return "split " + tile + " by " + blocks;
  return "persistent " + tile + (w.blocks > 1 ? " pair" : "");
}

const char* way_refuses(int way, const at::Tensor& x, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias, const Problem& p) {
  if (!p.x_row) return "x's batch dimensions have no single stride";
  if (p.inner() * p.B * p.K == 0) return "there is nothing to multiply";
  if (way < cuda::kWayCount) return p.indexable ? nullptr : "an offset is beyond 32 bits";
#ifdef KERNELBENCH_DIST_CUDA
  if (!device_runs_tiles()) return "it needs a GPU of compute capability 9.0, and code for sm_90a";
#endif
  if (way == kWay3xTf32) {
    if (x.scalar_type() != at::kFloat) return "3xTF32 is for float32";
    if (tf32_is_allowed()) return "torch's flags allow TF32, where one product is enough";
  } else if (x.scalar_type() == at::kFloat && !tf32_is_allowed()) {
    return "it multiplies float32 as TF32, which torch's flags do not allow";
  }
  return cuda::tiles_refuse(call_of(x, weight, bias, p));
}

}  // namespace kernelbench_dist

namespace kernelbench_dist::cuda {

const char* tiles_refuse(const AllGatherLinear& c) {
  // What TMA takes: 16-byte addresses and strides, below 2^40 bytes; 32-bit sizes. Whether it takes
  // strides by which rows overlap is not written down.
  const int64_t size = c.type == Scalar::f32 ? 4 : 2;
  const auto strides = [&](int64_t count, int64_t stride) {
    const int64_t bytes = stride * size;
    return count == 1 || (stride >= c.H && bytes % 16 == 0 && bytes < int64_t{1} << 40);
  };
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  // Tiles reach past the end of B and K by less than 512.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() - 512;

  if (c.type == Scalar::f64) return "float64 has no tensor core product of this kind";
  if (c.B <= 0 || c.K <= 0 || c.H <= 0) return "there is nothing to multiply";
  if (c.B > kMost || c.K > kMost || c.R > kMost / (c.H + 64) || c.B > kMost / c.K ||
      c.R * (c.H / 32 + 1) > (int64_t{1} << 32) / ((c.B / 64 + 1) * (c.K / 64 + 1))) {
    return "a size is beyond 32 bits";
  }
  if (c.x_feature != 1 && c.H > 1) return "x's features do not lie side by side";
  if (c.w_feature != 1 && c.R * c.H > 1) return "weight's columns do not lie side by side";
  if (!aligned(c.x) || !strides(c.B, c.x_row) || !strides(c.R, c.x_rank)) {
    return "x's rows are not on 16-byte boundaries, or overlap";
  }
  if (!aligned(c.weight) || !strides(c.K, c.w_output) || !strides(c.R, c.H)) {
    return "the parts of weight's rows are not on 16-byte boundaries";
  }
  return nullptr;
}

}  // namespace kernelbench_dist::cuda
