#ifdef KERNELBENCH_DIST_CUDA

#include "bindings/cuda_device.h"

#include <c10/cuda/CUDAFunctions.h>

#include <array>
#include <atomic>

#include "cuda/all_gather_linear.h"

namespace kernelbench_dist {

bool device_runs_our_code() {
  static const int count = c10::cuda::device_count();
  if (count == 0) return true;
  static std::array<std::atomic<signed char>, 128> answers{};  // 0: not asked, 1: yes, -1: no
  const int device = c10::cuda::current_device();
  if (device >= static_cast<int>(answers.size())) return cuda::runs_on_current_device();
  signed char answer = answers[device].load(std::memory_order_relaxed);
  if (answer == 0) {
    answer = cuda::runs_on_current_device() ? 1 : -1;
    answers[device].store(answer, std::memory_order_relaxed);
  }
  return answer > 0;
}

}  // namespace kernelbench_dist

#endif
