// What the CPU at hand can do.
#pragma once

#include <ATen/core/Tensor.h>

namespace kernelbench_dist::cpu {

// Whether matrix products of this 16-bit float type run at least as fast as float32's.
bool multiplies(at::ScalarType type);

}  // namespace kernelbench_dist::cpu
