// The element types that the kernels take.
#pragma once

namespace kernelbench_dist::cuda {

enum class Scalar { f32, f64, f16, bf16 };

}  // namespace kernelbench_dist::cuda
