// The operands of all_gather_linear as numbers, and the choice of how to compute it.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "cuda/all_gather_linear.h"
#include "cuda/all_gather_linear_tiles.h"

namespace kernelbench_dist {

// Dimensions [first, last) of a tensor counted as one, with the stride between neighbours where
// there is one. A dimension of one element has no stride to speak of.
struct Joined {
  int64_t size = 1;
  std::optional<int64_t> stride = 0;
};
Joined join_dims(const at::Tensor& t, int64_t first, int64_t last);

// Whether every offset into t fits in the 32-bit indices of our kernels, with room to step past the
// end.
bool fits_32_bits(const at::Tensor& t);

// x (R, *b, H) and weight (K, R*H), with *b counted as one dimension of B rows.
struct Problem {
  int64_t R, B, H, K;
  std::optional<int64_t> x_row;  // the stride between rows of x, where there is one
  bool indexable;                // every size, and every offset into an operand or out, fits

  int64_t inner() const { return R * H; }
};
Problem problem_of(const at::Tensor& x, const at::Tensor& weight,
                   const std::optional<at::Tensor>& bias);

// These raise a RuntimeError that names the argument, what it is and what is accepted.
void check_all_gather_linear(const at::Tensor& x, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias);

// Of the gradients; x is given where grad_weight is wanted, weight where grad_x is.
void check_all_gather_linear_backward(const at::Tensor& grad, const std::optional<at::Tensor>& x,
                                      const std::optional<at::Tensor>& weight, int64_t R);

// The same call for a kernel; p.x_row is there.
cuda::AllGatherLinear call_of(const at::Tensor& x, const at::Tensor& weight,
                              const std::optional<at::Tensor>& bias, const Problem& p);

// The CUDA kernels, by number: cuda::kWays, then cuda::kTileWays, then 3xTF32.
inline constexpr int kWay3xTf32 = cuda::kWayCount + cuda::kTileWayCount;
inline constexpr int kAllWays = kWay3xTf32 + 1;
std::string way_name(int way);

// Why this kernel cannot compute this, on the current device; null where it can.
const char* way_refuses(int way, const at::Tensor& x, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias, const Problem& p);

// torch's own path: the fallback, and what every transform of torch's understands.
at::Tensor composite_all_gather_linear(const at::Tensor& x, const at::Tensor& weight,
                                       const std::optional<at::Tensor>& bias);

// Whether torch's flags let float32 be multiplied as TF32.
bool tf32_is_allowed();

// Whether float32 may be multiplied in three TF32 products, which is off unless asked for; process
// wide. Never where torch's precision for products is set to full float32 by name.
bool three_tf32_is_allowed();
bool allow_three_tf32(bool allow);  // returns what was set before

struct Choice {
  enum Path {
    fused,     // one of our CUDA kernels, by number
    by_rank,   // CPU: one product a rank, added up in place
    upcast,    // CPU: fp16 and bf16 gathered and multiplied in fp32, rounded once
    fallback,  // torch.cat and F.linear
  } path;
  int way;  // of fused
  const char* reason;
};

// The one place where this is decided. It looks at types, sizes, strides and alignment alone, never
// at values, so it is the same on every run.
Choice choose(at::DeviceType device, const at::Tensor& x, const at::Tensor& weight,
              const std::optional<at::Tensor>& bias, const Problem& problem);

std::optional<cuda::Scalar> scalar_of(at::ScalarType type);

}  // namespace kernelbench_dist
