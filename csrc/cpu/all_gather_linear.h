// All-gather on the last dim, then Linear, on the CPU, from products that torch's BLAS computes.
//
//   out[b, k] = bias[k] + sum over r, h of x[r, b, h] * weight[k, r*H + h]
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace kernelbench_dist::cpu {

// One product a rank, each added to the last in place: no gathered copy. float32 and float64.
at::Tensor all_gather_linear_by_rank(const at::Tensor& x, const at::Tensor& weight,
                                     const std::optional<at::Tensor>& bias);

// For float16 and bfloat16 on CPUs that have no products of them: gathers into float32, multiplies
// there, and rounds once.
at::Tensor all_gather_linear_upcast(const at::Tensor& x, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& bias);

}  // namespace kernelbench_dist::cpu
