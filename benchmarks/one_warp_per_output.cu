// The baseline that all_gather_linear is measured against: one warp computes one output.
//
//     y[b, k] = bias[k] + sum over r, h of x[r, b, h] * weight[k, r*H + h]
//
// x (R, B, H), weight (K, R*H), bias (K,) and y (B, K), float32 and contiguous. The ranks are read
// in place: nothing is gathered. Lane l takes every 32nd element of the R*H, and the lanes' sums
// are added up by shuffles. A block has 7 warps.
//
// Two versions: one takes any sizes at run time; the other has them fixed when it is compiled, so
// that every division and every loop bound is a constant, and reads 16 bytes at once. The second is
// the strongest kernel that is still this simple.

constexpr int kWarps = 7;
constexpr int kLanes = 32;

__device__ __forceinline__ float sum_over_lanes(float value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

// ---- Sizes known at run time

__global__ void any_sizes(const float* __restrict__ x, const float* __restrict__ weight,
                          const float* __restrict__ bias, float* __restrict__ y, int R, int B,
                          int H, int K) {
  const int output = blockIdx.x * kWarps + threadIdx.x / kLanes;
  if (output >= B * K) return;
  const int lane = threadIdx.x % kLanes;
  const int b = output / K, k = output % K;
  float sum = 0;
  for (int i = lane; i < R * H; i += kLanes) {
    const int r = i / H, h = i % H;
    sum += x[(r * B + b) * H + h] * weight[k * R * H + i];
  }
  sum = sum_over_lanes(sum);
  if (lane == 0) y[output] = sum + bias[k];
}

// ---- Sizes known when it is compiled

template <int R, int B, int H, int K>
__global__ void __launch_bounds__(kWarps* kLanes)
    fixed_sizes(const float4* __restrict__ x, const float4* __restrict__ weight,
                const float* __restrict__ bias, float* __restrict__ y) {
  static_assert(H % 4 == 0, "a read of 16 bytes must not cross from one rank to the next");
  static_assert(B * K % kWarps == 0, "every warp must have an output");
  constexpr int kRank = H / 4;       // reads in a row of one rank
  constexpr int kInner = R * kRank;  // reads in a row of weight
  const int output = blockIdx.x * kWarps + threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  const int b = output / K, k = output % K;
  const float offset = lane == 0 ? bias[k] : 0;  // before the sum, so that its wait is shared
  float sum = 0;
#pragma unroll
  for (int start = 0; start < kInner; start += kLanes) {
    const int i = start + lane;
    if (kInner % kLanes != 0 && i >= kInner) break;
    const float4 p = x[(i / kRank * B + b) * kRank + i % kRank];
    const float4 q = weight[k * kInner + i];
    sum += p.x * q.x + p.y * q.y + p.z * q.z + p.w * q.w;
  }
  sum = sum_over_lanes(sum);
  if (lane == 0) y[output] = sum + offset;
}

// ---- Launchers: the stream is a cudaStream_t, and what is returned is a cudaError_t

int launch_any_sizes(const float* x, const float* weight, const float* bias, float* y, int R, int B,
                     int H, int K, void* stream) {
  const int blocks = (B * K + kWarps - 1) / kWarps;
  any_sizes<<<blocks, kWarps * kLanes, 0, static_cast<cudaStream_t>(stream)>>>(x, weight, bias, y,
                                                                               R, B, H, K);
  return cudaGetLastError();
}

int launch_fixed_sizes(const float* x, const float* weight, const float* bias, float* y,
                       void* stream) {
  constexpr int R = 4, B = 12, H = 32, K = 56;
  fixed_sizes<R, B, H, K>
      <<<B * K / kWarps, kWarps * kLanes, 0, static_cast<cudaStream_t>(stream)>>>(
          reinterpret_cast<const float4*>(x), reinterpret_cast<const float4*>(weight), bias, y);
  return cudaGetLastError();
}
