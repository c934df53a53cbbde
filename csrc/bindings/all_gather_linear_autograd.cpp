// The gradients of all_gather_linear, and how it meets autocast and torch.func. With grad (B, K):
//
//   grad_x[r]                     = grad @ weight[:, r*H:(r+1)*H]
//   grad_weight[:, r*H:(r+1)*H]   = grad^T @ x[r]
//   grad_bias                     = grad.sum(0)
//
// Nothing is gathered: for small sizes one kernel computes all three, for others they are batched
// products over r that read and write strided views.
#include <ATen/FuncTorchTLS.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>

#include "bindings/all_gather_linear.h"
#include "cpu/features.h"

#ifdef KERNELBENCH_DIST_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "bindings/cuda_device.h"
#endif

namespace kernelbench_dist {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Forward = Tensor(const Tensor&, const Tensor&, const MaybeTensor&);
using Backward = Gradients(const Tensor&, const MaybeTensor&, const MaybeTensor&, int64_t, bool);

Tensor call_forward(const Tensor& x, const Tensor& weight, const MaybeTensor& bias) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("kernelbench_dist::all_gather_linear", "")
                             .typed<Forward>();
  return op.call(x, weight, bias);
}

// ---- The operator _all_gather_linear_backward: x is given where grad_weight is wanted, weight
// where grad_x is. What is not wanted comes back empty, (0,).

struct Sizes {
  int64_t R, B, H, K;
};

// Computes all three in one launch where that pays; returns whether it did.
bool run_fused(const Tensor& grad, const MaybeTensor& x, const MaybeTensor& weight, Sizes s,
               const Gradients& outputs) {
#ifdef KERNELBENCH_DIST_CUDA
  // Each thread runs through B or K products one after the other, so neither may be long.
  if (!grad.is_cuda() || s.B > 128 || s.K > 128 || s.R * s.H * (s.B + s.K) > 65536) return false;
  const auto& [grad_x, grad_weight, grad_bias] = outputs;
  const Joined grad_rows = join_dims(grad, 0, grad.dim() - 1);
  const Joined x_rows = x ? join_dims(*x, 1, x->dim() - 1) : Joined();
  if (!device_runs_our_code() || !grad_rows.stride || !x_rows.stride || !fits_32_bits(grad) ||
      (x && !fits_32_bits(*x)) || (weight && !fits_32_bits(*weight)) ||
      grad_x.numel() + grad_weight.numel() + grad_bias.numel() == 0) {
    return false;
  }
  const auto output = [](const Tensor& t) { return t.numel() ? t.mutable_data_ptr() : nullptr; };
  cuda::AllGatherLinearBackward call{};
  call.type = *scalar_of(grad.scalar_type());
  call.R = s.R, call.B = s.B, call.H = s.H, call.K = s.K;
  call.grad = grad.const_data_ptr();
  call.g_row = *grad_rows.stride, call.g_output = grad.stride(-1);
  if (x) {
    call.x = x->const_data_ptr();
    call.x_rank = x->stride(0), call.x_row = *x_rows.stride, call.x_feature = x->stride(-1);
  }
  if (weight) {
    call.weight = weight->const_data_ptr();
    call.w_output = weight->stride(0), call.w_feature = weight->stride(1);
  }
  call.grad_x = output(grad_x), call.grad_weight = output(grad_weight);
  call.grad_bias = output(grad_bias);
  C10_CUDA_CHECK(static_cast<cudaError_t>(
      cuda::launch_all_gather_linear_backward(call, c10::cuda::getCurrentCUDAStream())));
  return true;
#else
  return false;
#endif
}

Gradients backward(const Tensor& grad, const MaybeTensor& x, const MaybeTensor& weight, int64_t R,
                   bool with_bias) {
  check_all_gather_linear_backward(grad, x, weight, R);
  if (grad.is_cpu() && !cpu::multiplies(grad.scalar_type())) {
    const auto wide = [](const Tensor& t) { return t.to(at::kFloat); };
    const auto maybe_wide = [&](const MaybeTensor& t) {
      return t ? std::optional(wide(*t)) : std::nullopt;
    };
    auto [gx, gw, gb] = backward(wide(grad), maybe_wide(x), maybe_wide(weight), R, with_bias);
    const auto type = grad.scalar_type();
    return {gx.to(type), gw.to(type), gb.to(type)};
  }
  const c10::OptionalDeviceGuard guard(grad.device());
  const int64_t K = grad.size(-1), B = join_dims(grad, 0, grad.dim() - 1).size;
  const int64_t H = weight ? weight->size(1) / R : x ? x->size(-1) : 0;
  auto x_sizes = grad.sizes().vec();
  x_sizes.insert(x_sizes.begin(), R);
  x_sizes.back() = H;
  const std::vector<int64_t> nothing = {0};
  const auto make = [&](bool wanted, const std::vector<int64_t>& sizes) {
    return at::empty(wanted ? sizes : nothing, grad.options());
  };
  Gradients outputs{make(weight.has_value(), x_sizes), make(x.has_value(), {K, R * H}),
                    make(with_bias, {K})};
  if (run_fused(grad, x, weight, {R, B, H, K}, outputs)) return outputs;

  const auto& [grad_x, grad_weight, grad_bias] = outputs;
  const Tensor rows = grad.reshape({B, K});
  if (weight) {
    Tensor out = grad_x.view({R, B, H});
    const Tensor by_rank = weight->unflatten(1, {R, H}).transpose(0, 1);  // (R, K, H)
    at::bmm_out(out, rows.expand({R, B, K}), by_rank);
  }
  if (x) {
    Tensor out = grad_weight.view({K, R, H}).transpose(0, 1);  // (R, K, H)
    at::bmm_out(out, rows.t().expand({R, K, B}), x->reshape({R, B, H}));
  }
  if (with_bias) {
    Tensor out = grad_bias;
    at::sum_out(out, rows, 0);
  }
  return outputs;
}

// The same from operations that autograd can differentiate again.
variable_list differentiable_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                      int64_t R, bool with_bias) {
  // All sizes are given: where one is 0, a -1 could be anything.
  const int64_t K = grad.size(-1), B = join_dims(grad, 0, grad.dim() - 1).size;
  const Tensor rows = grad.reshape({B, K});
  Tensor grad_x, grad_weight, grad_bias;
  if (weight.defined()) {
    const int64_t H = weight.size(1) / R;
    auto sizes = grad.sizes().vec();
    sizes.insert(sizes.begin(), R);
    sizes.back() = H;
    const Tensor by_rank = weight.unflatten(1, {R, H}).transpose(0, 1);
    grad_x = at::matmul(rows, by_rank).reshape(sizes);
  }
  if (x.defined()) {
    const int64_t H = x.size(-1);
    const Tensor by_rank = at::matmul(rows.t(), x.reshape({R, B, H}));  // (R, K, H)
    grad_weight = by_rank.transpose(0, 1).reshape({K, R * H});
  }
  if (with_bias) grad_bias = rows.sum(0);
  return {grad_x, grad_weight, grad_bias};
}

// ---- Autograd

// Whether forward-mode differentiation, which does not know C++ autograd functions, is at work.
bool is_dual(const Tensor& t) { return t.defined() && t._fw_grad(0).defined(); }

class AllGatherLinear : public torch::autograd::Function<AllGatherLinear> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const MaybeTensor& bias) {
    // Only what a gradient needs is kept: a frozen weight does not keep x alive.
    ctx->save_for_backward(
        {weight.requires_grad() ? x : Tensor(), x.requires_grad() ? weight : Tensor()});
    ctx->saved_data["R"] = x.sym_size(0).guard_int(__FILE__, __LINE__);
    ctx->saved_data["with_bias"] = bias.has_value() && bias->requires_grad();
    const at::AutoDispatchBelowADInplaceOrView guard;
    return call_forward(x, weight, bias);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const Tensor& grad = grads[0];
    if (!grad.defined()) return {Tensor(), Tensor(), Tensor()};
    const auto saved = ctx->get_saved_variables();
    const Tensor x = ctx->needs_input_grad(1) ? saved[0] : Tensor();
    const Tensor weight = ctx->needs_input_grad(0) ? saved[1] : Tensor();
    const int64_t R = ctx->saved_data["R"].toInt();
    const bool with_bias = ctx->saved_data["with_bias"].toBool() && ctx->needs_input_grad(2);
    if (at::GradMode::is_enabled() || is_dual(grad) || is_dual(x) || is_dual(weight)) {
      return differentiable_backward(grad, x, weight, R, with_bias);
    }

    static const auto op =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("kernelbench_dist::_all_gather_linear_backward", "")
            .typed<Backward>();
    const auto maybe = [](const Tensor& t) {
      return t.defined() ? std::optional(t) : std::nullopt;
    };
    auto [grad_x, grad_weight, grad_bias] = op.call(grad, maybe(x), maybe(weight), R, with_bias);
    return {weight.defined() ? grad_x : Tensor(), x.defined() ? grad_weight : Tensor(),
            with_bias ? grad_bias : Tensor()};
  }
};

// torch.func's transforms do not know C++ autograd functions. The only question that torch answers
// in a public header raises where a transform is active.
bool in_functorch_transform() {
  const auto& state = at::functorch::functorchTLSAccessor();
  if (!state) return false;
  try {
    state->checkSupportsCppAutogradFunction();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

// Under a transform the checks speak of the tensors as the function sees them. Sizes that are not
// known yet, under torch.compile, are left to torch's own operations.
Tensor transformed(const Tensor& x, const Tensor& weight, const MaybeTensor& bias) {
  const auto is_symbolic = [](const Tensor& t) {
    return t.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  };
  if (!is_symbolic(x) && !is_symbolic(weight) && !(bias && is_symbolic(*bias))) {
    check_all_gather_linear(x, weight, bias);
  }
  return composite_all_gather_linear(x, weight, bias);
}

Tensor autograd(const Tensor& x, const Tensor& weight, const MaybeTensor& bias) {
  if (is_dual(x) || is_dual(weight) || (bias && is_dual(*bias)) || in_functorch_transform()) {
    return transformed(x, weight, bias);
  }
  const bool differentiates =
      at::GradMode::is_enabled() &&
      (x.requires_grad() || weight.requires_grad() || (bias && bias->requires_grad()));
  if (differentiates) return AllGatherLinear::apply(x, weight, bias);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return call_forward(x, weight, bias);
}

// ---- Autocast: as F.linear, in the lower precision of the device.

template <c10::DeviceType device, c10::DispatchKey key>
Tensor autocast(const Tensor& x, const Tensor& weight, const MaybeTensor& bias) {
  const c10::impl::ExcludeDispatchKeyGuard guard(key);
  const auto type = at::autocast::get_autocast_dtype(device);
  const auto cast = [&](const auto& t) { return at::autocast::cached_cast(type, t, device); };
  return call_forward(cast(x), cast(weight), cast(bias));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(kernelbench_dist, m) {
  m.def(
      "_all_gather_linear_backward(Tensor grad, Tensor? x, Tensor? weight, int R, bool with_bias)"
      " -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(kernelbench_dist, CPU, m) { m.impl("_all_gather_linear_backward", backward); }
TORCH_LIBRARY_IMPL(kernelbench_dist, CUDA, m) { m.impl("_all_gather_linear_backward", backward); }

TORCH_LIBRARY_IMPL(kernelbench_dist, Autograd, m) { m.impl("all_gather_linear", autograd); }

TORCH_LIBRARY_IMPL(kernelbench_dist, FuncTorchBatched, m) {
  m.impl("all_gather_linear", transformed);
}

TORCH_LIBRARY_IMPL(kernelbench_dist, AutocastCPU, m) {
  m.impl("all_gather_linear", autocast<at::kCPU, c10::DispatchKey::AutocastCPU>);
}
TORCH_LIBRARY_IMPL(kernelbench_dist, AutocastCUDA, m) {
  m.impl("all_gather_linear", autocast<at::kCUDA, c10::DispatchKey::Autocast>);
}

}  // namespace kernelbench_dist
