// torch.ops.kernelbench_dist.all_gather_linear: schemas and dispatch. Its gradients and transforms
// are in all_gather_linear_autograd.cpp.
//
//   all_gather_linear(x, weight, bias) = F.linear(torch.cat(x.unbind(0), -1), weight, bias)
#include "bindings/all_gather_linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <torch/library.h>

#include <string>
#include <tuple>
#include <vector>

#include "bindings/tile_choice.h"
#include "cpu/all_gather_linear.h"

#ifdef KERNELBENCH_DIST_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace kernelbench_dist {

at::Tensor composite_all_gather_linear(const at::Tensor& x, const at::Tensor& weight,
                                       const std::optional<at::Tensor>& bias) {
  return at::linear(at::cat(x.unbind(0), -1), weight, bias);
}

namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

#ifdef KERNELBENCH_DIST_CUDA
Tensor run_fused(const Tensor& x, const Tensor& weight, const MaybeTensor& bias, const Problem& p,
                 int way) {
  auto sizes = x.sizes().slice(1).vec();
  sizes.back() = p.K;
  Tensor out = at::empty(sizes, x.options());
  cuda::AllGatherLinear call = call_of(x, weight, bias, p);
  call.out = out.mutable_data_ptr();
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int error = way < cuda::kWayCount ? cuda::launch_all_gather_linear(call, way, stream)
                    : way == kWay3xTf32
                        ? cuda::launch_all_gather_linear_3xtf32(call, stream)
                        : cuda::launch_all_gather_linear_tiles(call, way - cuda::kWayCount, stream);
  C10_CUDA_CHECK(static_cast<cudaError_t>(error));
  return out;
}
#endif

Tensor all_gather_linear_cuda(const Tensor& x, const Tensor& weight, const MaybeTensor& bias) {
  check_all_gather_linear(x, weight, bias);
#ifdef KERNELBENCH_DIST_CUDA
  const c10::cuda::CUDAGuard guard(x.device());
  const Problem p = problem_of(x, weight, bias);
  const Choice choice = choose(at::kCUDA, x, weight, bias, p);
  if (choice.path == Choice::fused) return run_fused(x, weight, bias, p, choice.way);
#endif
  return composite_all_gather_linear(x, weight, bias);
}

Tensor all_gather_linear_cpu(const Tensor& x, const Tensor& weight, const MaybeTensor& bias) {
  check_all_gather_linear(x, weight, bias);
  switch (choose(at::kCPU, x, weight, bias, problem_of(x, weight, bias)).path) {
    case Choice::by_rank:
      return cpu::all_gather_linear_by_rank(x, weight, bias);
    case Choice::upcast:
      return cpu::all_gather_linear_upcast(x, weight, bias);
    default:
      return composite_all_gather_linear(x, weight, bias);
  }
}

// Devices that we have no kernels for, and layouts, which are refused here.
Tensor all_gather_linear_elsewhere(const Tensor& x, const Tensor& weight, const MaybeTensor& bias) {
  check_all_gather_linear(x, weight, bias);
  return composite_all_gather_linear(x, weight, bias);
}

void check_way_number(const char* op, int64_t way) {
  TORCH_CHECK(way >= 0 && way < kAllWays, op, ": way must be 0 to ", kAllWays - 1, ", got ", way);
}

std::string way_refusal(const Tensor& x, const Tensor& weight, const MaybeTensor& bias,
                        int64_t way) {
  check_all_gather_linear(x, weight, bias);
  check_way_number("_all_gather_linear_way_refusal", way);
#ifdef KERNELBENCH_DIST_CUDA
  c10::OptionalDeviceGuard guard;
  if (x.is_cuda()) guard.reset_device(x.device());
#endif
  const char* why =
      way_refuses(static_cast<int>(way), x, weight, bias, problem_of(x, weight, bias));
  return why ? why : "";
}

// What choose_tile reckons with: rounds and steps of a tile way; nothing for the others.
std::vector<int64_t> way_work(const Tensor& x, const Tensor& weight, int64_t way) {
  check_all_gather_linear(x, weight, std::nullopt);
  check_way_number("_all_gather_linear_way_work", way);
  if (way < cuda::kWayCount || way == kWay3xTf32) return {};
  const Problem p = problem_of(x, weight, std::nullopt);
  const TileWork work =
      tile_work(cuda::kTileWays[way - cuda::kWayCount], p.R, p.B, p.H, p.K, x.element_size());
  return {work.rounds, work.steps};
}

// One of the CUDA kernels by number, whatever would be chosen: for tests and for measuring them.
Tensor all_gather_linear_by(const Tensor& x, const Tensor& weight, const MaybeTensor& bias,
                            int64_t number) {
  check_all_gather_linear(x, weight, bias);
  check_way_number("_all_gather_linear_by", number);
#ifdef KERNELBENCH_DIST_CUDA
  const c10::cuda::CUDAGuard guard(x.device());
  const int way = static_cast<int>(number);
  const Problem p = problem_of(x, weight, bias);
  const char* why = way_refuses(way, x, weight, bias, p);
  TORCH_CHECK(!why, "_all_gather_linear_by: way ", way, " (", way_name(way),
              ") cannot compute x of shape ", x.sizes(), " and strides ", x.strides(), ": ", why);
  return run_fused(x, weight, bias, p, way);
#else
  TORCH_CHECK(false, "_all_gather_linear_by: this build has no CUDA part");
#endif
}

std::tuple<std::string, std::string, int64_t, std::vector<int64_t>, int64_t> plan(
    const Tensor& x, const Tensor& weight, const MaybeTensor& bias, at::Device device) {
  check_all_gather_linear(x, weight, bias);
#ifdef KERNELBENCH_DIST_CUDA
  // Only to ask a device that is there: one may also plan for CUDA where there is none.
  c10::OptionalDeviceGuard guard;
  if (device.is_cuda() && c10::cuda::device_count() > 0) guard.reset_device(device);
#endif
  const Choice choice = choose(device.type(), x, weight, bias, problem_of(x, weight, bias));
  switch (choice.path) {
    case Choice::fused: {
      if (choice.way < cuda::kWayCount) {
        const cuda::Way& way = cuda::kWays[choice.way];
        return {"dot", choice.reason, 1, {way.rows, way.outputs}, way.lanes};
      }
      if (choice.way == kWay3xTf32) {
        return {"3xtf32", choice.reason, 1, {cuda::kSplitFloatRows, cuda::kSplitFloatOutputs}, 1};
      }
      const cuda::TileWay& way = cuda::kTileWays[choice.way - cuda::kWayCount];
      const bool splits = way.kernel == cuda::TileWay::split;
      return {splits ? "split" : "persistent",
              choice.reason,
              1,
              {way.rows, way.outputs},
              splits ? way.blocks : 1};
    }
    case Choice::by_rank:
      return {"cpu_by_rank", choice.reason, 0, {}, 1};
    case Choice::upcast:
      return {"cpu_upcast", choice.reason, 0, {}, 1};
    default:
      return {"fallback", choice.reason, 0, {}, 1};
  }
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(kernelbench_dist, m) {
  m.def("_all_gather_linear_ways() -> str[]", [] {
    std::vector<std::string> names;
    for (int way = 0; way < kAllWays; ++way) names.push_back(way_name(way));
    return names;
  });
  m.def("_allow_3xtf32(bool allow) -> bool", &allow_three_tf32);
  m.def("all_gather_linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");
  m.def("_all_gather_linear_by(Tensor x, Tensor weight, Tensor? bias, int way) -> Tensor");
  m.def("_all_gather_linear_way_refusal(Tensor x, Tensor weight, Tensor? bias, int way) -> str");
  m.def("_all_gather_linear_way_work(Tensor x, Tensor weight, int way) -> int[]");
  m.def(
      "_all_gather_linear_plan(Tensor x, Tensor weight, Tensor? bias, Device device)"
      " -> (str, str, int, int[], int)");
}

TORCH_LIBRARY_IMPL(kernelbench_dist, CPU, m) { m.impl("all_gather_linear", all_gather_linear_cpu); }

TORCH_LIBRARY_IMPL(kernelbench_dist, CUDA, m) {
  m.impl("all_gather_linear", all_gather_linear_cuda);
  m.impl("_all_gather_linear_by", all_gather_linear_by);
}

TORCH_LIBRARY_IMPL(kernelbench_dist, CompositeExplicitAutograd, m) {
  m.impl("all_gather_linear", all_gather_linear_elsewhere);
  m.impl("_all_gather_linear_plan", plan);
  m.impl("_all_gather_linear_way_refusal", way_refusal);
  m.impl("_all_gather_linear_way_work", way_work);
}

}  // namespace kernelbench_dist
