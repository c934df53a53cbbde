#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>

#include "bindings/all_gather_linear.h"
#include "bindings/tile_choice.h"
#include "cpu/features.h"

#ifdef KERNELBENCH_DIST_CUDA
#include "bindings/cuda_device.h"
#endif

namespace kernelbench_dist {
namespace {

Choice choose_cpu(at::ScalarType type, const Problem& p) {
  if (type == at::kHalf || type == at::kBFloat16) {
    if (cpu::multiplies(type)) return {Choice::fallback, 0, "the CPU multiplies this type itself"};
    return {Choice::upcast, 0, "the CPU has no fast product of 16-bit floats"};
  }
  // Gathering costs a pass over x; R products cost R calls and R passes over the output.
  if (p.B * p.H >= 8192 && p.K <= 2 * p.H) {
    return {Choice::by_rank, 0, "gathering would cost more than R smaller products"};
  }
  return {Choice::fallback, 0, "one large product is faster than R smaller ones"};
}

#ifdef KERNELBENCH_DIST_CUDA

// ---- CUDA. The thresholds were fitted to 120 shapes a type, each way beside torch.cat + F.linear
// on one H200 (benchmarks/results/ways-21-h200.json), so that a kernel of ours runs only where it
// won.

struct Limits {
  int64_t outputs;   // B * K
  int64_t products;  // B * K * R * H
  int64_t inner;     // R * H
};

// Where torch may use tensor cores (TF32, fp16, bf16, float64) its product overtakes ours sooner.
Limits limits_of(at::ScalarType type) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  if (type == at::kFloat && !tf32_is_allowed()) return {131072, 250'000'000, kNone};
  if (type == at::kDouble) return {60000, 12'000'000, 896};
  return {60000, 20'000'000, kNone};
}

consteval int way_of(int rows, int outputs, int lanes) {
  for (int way = 0; way < cuda::kWayCount; ++way) {
    const auto& w = cuda::kWays[way];
    if (w.rows == rows && w.outputs == outputs && w.lanes == lanes) return way;
  }
  throw "no such way";  // not a constant, so it does not compile
}

// `loads`: 16-byte (or single-element) loads that one output needs of each operand.
int best_way(int64_t outputs, int64_t loads) {
  if (outputs <= 6000 && loads > 8) return way_of(1, 1, 32);
  if (outputs <= 40000 && (outputs <= 16000 || loads < 512)) {
    return loads <= 64 ? way_of(2, 2, 8) : way_of(2, 2, 32);
  }
  return loads <= 192 ? way_of(4, 4, 8) : way_of(4, 4, 32);
}

Choice choose_dot(at::ScalarType type, const Problem& p) {
  const int64_t outputs = p.B * p.K, pack = 16 / c10::elementSize(type);
  const bool packs = p.H % pack == 0;
  const int way = best_way(outputs, packs ? p.inner() / pack : p.inner());
  if (packs && p.B <= 4 && p.K >= 4096 && outputs <= 131072) {
    return {Choice::fused, way, "few rows: reading the weights is all the work"};
  }
  if (p.B == 1 && p.K < 2048 && p.inner() > 2048) {
    return {Choice::fallback, 0, "one row and few outputs: torch splits the long sums"};
  }
  const Limits limits = limits_of(type);
  if (outputs <= limits.outputs && p.inner() <= limits.inner &&
      outputs * p.inner() <= limits.products / (packs ? 1 : 16)) {
    return {Choice::fused, way, "small: launches cost more than arithmetic"};
  }
  return {Choice::fallback, 0, "large: torch's own product is faster"};
}

// Where 3xTF32 was asked for. Not measured: it should win where its tiles fill half of an H200, and
// a tile multiplies for longer than it is stored.
bool worth_3xtf32(const Problem& p) {
  constexpr int64_t kTile = cuda::kSplitFloatRows * cuda::kSplitFloatOutputs;
  return p.B * p.K >= 66 * kTile && p.inner() >= 512;
}

Choice choose_cuda(const at::Tensor& x, const at::Tensor& weight,
                   const std::optional<at::Tensor>& bias, const Problem& p) {
  const at::ScalarType type = x.scalar_type();
  if (!device_runs_our_code()) return {Choice::fallback, 0, "built for other architectures"};
  if (!p.x_row) return {Choice::fallback, 0, "x's batch dimensions have no single stride"};
  if (p.inner() == 0) return {Choice::fallback, 0, "there is nothing to multiply"};
  const Choice choice =
      p.indexable ? choose_dot(type, p)
                  : Choice{Choice::fallback, 0, "an offset is beyond our kernels' 32 bits"};
  if (choice.path == Choice::fused) return choice;
  const std::optional<int> tile = choose_tile(*scalar_of(type), p.R, p.B, p.H, p.K);
  if (tile && !way_refuses(cuda::kWayCount + *tile, x, weight, bias, p)) {
    return {Choice::fused, cuda::kWayCount + *tile, "large: the ranks are read in place"};
  }
  if (three_tf32_is_allowed() && worth_3xtf32(p) && !way_refuses(kWay3xTf32, x, weight, bias, p)) {
    return {Choice::fused, kWay3xTf32, "large, and 3xTF32 was allowed"};
  }
  return choice;
}

#else

Choice choose_cuda(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                   const Problem&) {
  return {Choice::fallback, 0, "this build has no CUDA part"};
}

#endif

}  // namespace

std::optional<cuda::Scalar> scalar_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return cuda::Scalar::f32;
    case at::kDouble:
      return cuda::Scalar::f64;
    case at::kHalf:
      return cuda::Scalar::f16;
    case at::kBFloat16:
      return cuda::Scalar::bf16;
    default:
      return std::nullopt;
  }
}

Joined join_dims(const at::Tensor& t, int64_t first, int64_t last) {
  Joined joined;
  for (int64_t d = last - 1; d >= first; --d) {
    const int64_t size = t.size(d), stride = t.stride(d);
    if (size == 1) continue;
    if (joined.size == 1) {
      joined.stride = stride;
    } else if (joined.stride && stride != *joined.stride * joined.size) {
      joined.stride.reset();
    }
    joined.size *= size;
  }
  return joined;
}

constexpr int64_t kMostOffset = std::numeric_limits<int32_t>::max() / 2;

bool fits_32_bits(const at::Tensor& t) {
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  return last <= kMostOffset;
}

Problem problem_of(const at::Tensor& x, const at::Tensor& weight,
                   const std::optional<at::Tensor>& bias) {
  const Joined rows = join_dims(x, 1, x.dim() - 1);
  const int64_t K = weight.size(0), inner = weight.size(1);
  // Sizes are looked at too: a stride of zero makes a small offset of a huge size.
  const bool indexable = fits_32_bits(x) && fits_32_bits(weight) &&
                         (!bias || fits_32_bits(*bias)) &&
                         std::max({inner, rows.size, K}) <= kMostOffset &&
                         rows.size <= kMostOffset / std::max<int64_t>(K, 1);
  return {x.size(0), rows.size, x.size(-1), K, rows.stride, indexable};
}

namespace {

// What x (or grad, in backward) must be, whatever its shape.
void check_lead(const char* op, const char* name, const at::Tensor& t) {
  TORCH_CHECK(scalar_of(t.scalar_type()), op, ": ", name,
              " must be float32, float64, float16 or bfloat16, got ", t.scalar_type());
  TORCH_CHECK(t.layout() == at::kStrided, op, ": ", name, " must be a dense tensor, got layout ",
              t.layout());
}

// What every other tensor must share with it.
void check_like(const char* op, const char* name, const at::Tensor& t, const char* lead_name,
                const at::Tensor& lead) {
  TORCH_CHECK(t.scalar_type() == lead.scalar_type(), op, ": ", name, " is ", t.scalar_type(),
              " and ", lead_name, " is ", lead.scalar_type(), "; they must have the same dtype");
  TORCH_CHECK(t.device() == lead.device(), op, ": ", name, " is on ", t.device(), " and ",
              lead_name, " is on ", lead.device(), "; they must be on the same device");
  TORCH_CHECK(t.layout() == at::kStrided, op, ": ", name, " must be a dense tensor, got layout ",
              t.layout());
}

}  // namespace

void check_all_gather_linear(const at::Tensor& x, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias) {
  constexpr const char* kName = "all_gather_linear";
  TORCH_CHECK(x.dim() >= 2 && x.size(0) > 0, kName,
              ": x must be (R, *b, H) with at least one rank, got shape ", x.sizes());
  const int64_t inner = x.size(0) * x.size(-1);
  TORCH_CHECK(weight.dim() == 2 && weight.size(1) == inner, kName,
              ": weight must be (K, R*H) = (K, ", inner, ") for x of shape ", x.sizes(),
              ", got shape ", weight.sizes());
  check_lead(kName, "x", x);
  check_like(kName, "weight", weight, "x", x);
  if (!bias) return;
  TORCH_CHECK(bias->dim() == 1 && bias->size(0) == weight.size(0), kName, ": bias must be (K,) = (",
              weight.size(0), ",) for weight of shape ", weight.sizes(), ", got shape ",
              bias->sizes());
  check_like(kName, "bias", *bias, "x", x);
}

void check_all_gather_linear_backward(const at::Tensor& grad, const std::optional<at::Tensor>& x,
                                      const std::optional<at::Tensor>& weight, int64_t R) {
  constexpr const char* kName = "_all_gather_linear_backward";
  TORCH_CHECK(grad.dim() >= 1, kName, ": grad must be (*b, K), got shape ", grad.sizes());
  TORCH_CHECK(R >= 1, kName, ": R must be 1 or more, got ", R);
  check_lead(kName, "grad", grad);
  const int64_t K = grad.size(-1);
  if (x) {
    TORCH_CHECK(x->dim() == grad.dim() + 1 && x->size(0) == R &&
                    x->sizes().slice(1, grad.dim() - 1) == grad.sizes().slice(0, grad.dim() - 1),
                kName, ": x must be (R, *b, H) with R = ", R, " for grad of shape ", grad.sizes(),
                ", got shape ", x->sizes());
    check_like(kName, "x", *x, "grad", grad);
  }
  if (weight) {
    TORCH_CHECK(weight->dim() == 2 && weight->size(0) == K && weight->size(1) % R == 0 &&
                    (!x || weight->size(1) == R * x->size(-1)),
                kName, ": weight must be (K, R*H) with K = ", K, " and R = ", R, ", got shape ",
                weight->sizes());
    check_like(kName, "weight", *weight, "grad", grad);
  }
}

Choice choose(at::DeviceType device, const at::Tensor& x, const at::Tensor& weight,
              const std::optional<at::Tensor>& bias, const Problem& p) {
  if (p.B * p.K == 0) return {Choice::fallback, 0, "the output is empty"};
  if (device == at::kCUDA) return choose_cuda(x, weight, bias, p);
  if (device == at::kCPU) return choose_cpu(x.scalar_type(), p);
  return {Choice::fallback, 0, "no kernel of ours for this device"};
}

}  // namespace kernelbench_dist
