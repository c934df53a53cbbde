// How each element type is loaded, accumulated and stored.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/scalar.h"

namespace kernelbench_dist::cuda {

// fp16 and bf16 accumulate in fp32 and round once; the others accumulate in their own type.
template <typename T>
struct Accumulator {
  using type = float;
};
template <>
struct Accumulator<double> {
  using type = double;
};
template <typename T>
using accumulator_t = typename Accumulator<T>::type;

__device__ __forceinline__ float widen(float v) { return v; }
__device__ __forceinline__ double widen(double v) { return v; }
__device__ __forceinline__ float widen(__half v) { return __half2float(v); }
__device__ __forceinline__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }

__device__ __forceinline__ void store(float* to, float v) { *to = v; }
__device__ __forceinline__ void store(double* to, double v) { *to = v; }
__device__ __forceinline__ void store(__half* to, float v) { *to = __float2half_rn(v); }
__device__ __forceinline__ void store(__nv_bfloat16* to, float v) { *to = __float2bfloat16_rn(v); }

// Calls run.template operator()<T>() with the C++ type of `type`.
template <typename F>
int with_type(Scalar type, F&& run) {
  switch (type) {
    case Scalar::f32:
      return run.template operator()<float>();
    case Scalar::f64:
      return run.template operator()<double>();
    case Scalar::f16:
      return run.template operator()<__half>();
    case Scalar::bf16:
      return run.template operator()<__nv_bfloat16>();
  }
  return cudaErrorInvalidValue;
}

// V consecutive elements, read in one load.
template <typename T, int V>
struct alignas(sizeof(T) * V) Pack {
  T v[V];
};

template <typename T>
inline constexpr int kFullPack = 16 / sizeof(T);

template <typename T, int V>
__device__ __forceinline__ Pack<T, V> load_pack(const T* from) {
  if constexpr (sizeof(T) * V == 16) {
    const uint4 raw = __ldg(reinterpret_cast<const uint4*>(from));
    return *reinterpret_cast<const Pack<T, V>*>(&raw);
  } else {
    static_assert(V == 1);
    return *reinterpret_cast<const Pack<T, V>*>(from);
  }
}

// n / d for 0 <= n < 2^31 and 1 <= d < 2^31, by a multiply and a shift: with s = ceil(log2 d) and
// m = floor(2^32 (2^s - d) / d) + 1, the quotient is (high32(n m) + n) >> s.
struct Divider {
  uint32_t divisor, multiplier, shift = 0;

  explicit Divider(uint32_t d) : divisor(d) {
    while ((uint64_t{1} << shift) < d) ++shift;
    multiplier = static_cast<uint32_t>((((uint64_t{1} << shift) - d) << 32) / d + 1);
  }
  __device__ __forceinline__ void divide(uint32_t n, uint32_t& quotient, uint32_t& rest) const {
    quotient = (__umulhi(n, multiplier) + n) >> shift;
    rest = n - quotient * divisor;
  }
};

}  // namespace kernelbench_dist::cuda
