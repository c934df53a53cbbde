#include "cpu/features.h"

namespace kernelbench_dist::cpu {

bool multiplies(at::ScalarType type) {
#if defined(__x86_64__)
  static const bool bf16 = __builtin_cpu_supports("avx512bf16");
  static const bool fp16 = __builtin_cpu_supports("avx512fp16");
  return type == at::kBFloat16 ? bf16 : type == at::kHalf ? fp16 : true;
#else
  return true;  // not known: leave it to torch
#endif
}

}  // namespace kernelbench_dist::cpu
