#include "cpu/all_gather_linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

namespace kernelbench_dist::cpu {

at::Tensor all_gather_linear_by_rank(const at::Tensor& x, const at::Tensor& weight,
                                     const std::optional<at::Tensor>& bias) {
  const int64_t R = x.size(0), H = x.size(-1), K = weight.size(0);
  auto sizes = x.sizes().slice(1).vec();
  sizes.back() = K;
  const at::Tensor rows = x.reshape({R, -1, H});
  const auto weight_of = [&](int64_t r) { return weight.narrow(1, r * H, H).t(); };
  at::Tensor out = bias ? at::addmm(*bias, rows[0], weight_of(0)) : at::mm(rows[0], weight_of(0));
  for (int64_t r = 1; r < R; ++r) out.addmm_(rows[r], weight_of(r));
  return out.view(sizes);
}

at::Tensor all_gather_linear_upcast(const at::Tensor& x, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& bias) {
  const auto wide = [](const at::Tensor& t) { return t.to(at::kFloat); };
  const at::Tensor gathered =
      x.movedim(0, -2).to(at::kFloat, false, false, at::MemoryFormat::Contiguous).flatten(-2);
  const std::optional<at::Tensor> wide_bias = bias ? std::optional(wide(*bias)) : std::nullopt;
  return at::linear(gathered, wide(weight), wide_bias).to(x.scalar_type());
}

}  // namespace kernelbench_dist::cpu
