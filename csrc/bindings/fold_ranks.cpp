// torch.ops.kernelbench_dist._fold_ranks: what virtual ranks reduce with on a GPU.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#ifdef KERNELBENCH_DIST_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "bindings/all_gather_linear.h"
#include "bindings/cuda_device.h"
#include "cuda/fold_ranks.h"
#endif

namespace kernelbench_dist {
namespace {

// false: there is no kernel for these, and nothing was done.
bool fold_ranks_elsewhere(at::TensorList, at::TensorList, std::string_view) { return false; }

#ifdef KERNELBENCH_DIST_CUDA
bool fold_ranks_cuda(at::TensorList xs, at::TensorList outs, std::string_view op) {
  static constexpr std::array<std::string_view, 5> kOps{"sum", "avg", "prod", "min", "max"};
  constexpr size_t kMost = cuda::kMostFoldRanks;
  const auto* known = std::find(kOps.begin(), kOps.end(), op);
  if (known == kOps.end() || xs.empty() || xs.size() > kMost || outs.size() > kMost) return false;
  const at::Tensor& first = xs.front();
  const auto type = scalar_of(first.scalar_type());
  const auto alike = [&](const at::Tensor& t) {
    return t.device() == first.device() && t.scalar_type() == first.scalar_type() &&
           t.numel() == first.numel() && t.is_contiguous() && !t.is_conj() && !t.is_neg();
  };
  if (!type || !std::all_of(xs.begin(), xs.end(), alike) ||
      !std::all_of(outs.begin(), outs.end(), alike)) {
    return false;
  }
  const c10::cuda::CUDAGuard guard(first.device());
  if (!device_runs_our_code()) return false;
  if (first.numel() == 0) return true;
  cuda::FoldRanks call{
      .type = *type,
      .op = static_cast<cuda::FoldOp>(known - kOps.begin()),
      .ranks = static_cast<int>(xs.size()),
      .outs = static_cast<int>(outs.size()),
      .count = first.numel(),
  };
  for (size_t r = 0; r < xs.size(); ++r) call.x[r] = xs[r].const_data_ptr();
  for (size_t j = 0; j < outs.size(); ++j) call.out[j] = outs[j].mutable_data_ptr();
  C10_CUDA_CHECK(
      static_cast<cudaError_t>(cuda::launch_fold_ranks(call, c10::cuda::getCurrentCUDAStream())));
  return true;
}
#endif

}  // namespace

TORCH_LIBRARY_FRAGMENT(kernelbench_dist, m) {
  m.def("_fold_ranks(Tensor[] xs, Tensor(a!)[] outs, str op) -> bool");
}

TORCH_LIBRARY_IMPL(kernelbench_dist, CompositeExplicitAutograd, m) {
  m.impl("_fold_ranks", fold_ranks_elsewhere);
}

#ifdef KERNELBENCH_DIST_CUDA
TORCH_LIBRARY_IMPL(kernelbench_dist, CUDA, m) { m.impl("_fold_ranks", fold_ranks_cuda); }
#endif

}  // namespace kernelbench_dist
