#ifdef KERNELBENCH_DIST_CUDA

#include "bindings/cuda_device.h"

#include <c10/cuda/CUDAFunctions.h>

#include <array>
#include <atomic>

#include "cuda/all_gather_linear.h"
#include "cuda/all_gather_linear_tiles.h"

namespace kernelbench_dist {

namespace {

// ASK's answer for the current device, asked for once a device; true where there is none.
template <bool (*ASK)()>
bool answer_for_device() {
  static const int count = c10::cuda::device_count();
  if (count == 0) return true;
  static std::array<std::atomic<signed char>, 128> answers{};  // 0: not asked, 1: yes, -1: no
  const int device = c10::cuda::current_device();
  if (device >= static_cast<int>(answers.size())) return ASK();
  signed char answer = answers[device].load(std::memory_order_relaxed);
  if (answer == 0) {
    answer = ASK() ? 1 : -1;
    answers[device].store(answer, std::memory_order_relaxed);
  }
  return answer > 0;
}

}  // namespace

bool device_runs_our_code() { return answer_for_device<cuda::runs_on_current_device>(); }

bool device_runs_tiles() { return answer_for_device<cuda::tiles_run_on_current_device>(); }

}  // namespace kernelbench_dist

#endif
