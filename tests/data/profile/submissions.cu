// Kernels that each do one thing badly, or well, so that it is known what a profile must say of
// them. All are float32 and contiguous. Operators of a library, since no header of pybind is then
// needed, which would take a minute to compile.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

namespace {

// y = 2 x, 16 bytes a lane: as fast as memory allows.
__global__ void stream_wide(const float4* x, float4* y, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float4 v = x[i];
  y[i] = {2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w};
}

// y[i, j] = 2 x[j, i]: neighbouring lanes read addresses n floats apart, a sector each for 4 bytes.
__global__ void strided(const float* x, float* y, int n) {
  const int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y;
  if (j < n) y[int64_t(i) * n + j] = 2 * x[int64_t(j) * n + i];
}

// y[b, i, j] = sum over k of x[b, j, k]. The lanes of a warp read one column of a tile of 32 x 32
// floats: 32 rows of the same bank, so that each load takes 32 wavefronts.
__global__ void conflicts(const float* x, float* y) {
  __shared__ float tile[32][32];
  const int i = threadIdx.y, j = threadIdx.x;
  const int64_t at = int64_t(blockIdx.x) * 1024 + i * 32 + j;
  tile[i][j] = x[at];
  __syncthreads();
  float sum = 0;
  for (int k = 0; k < 32; ++k) sum += tile[j][(i + k) % 32];
  y[at] = sum;
}

// y[k] = x[k] x[(7 k + 3) mod 40]: forty values are alive at once, and 32 registers are allowed.
__global__ void __launch_bounds__(1024, 2) spills(const float* x, float* y, int64_t row) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  float values[40];
#pragma unroll
  for (int k = 0; k < 40; ++k) values[k] = x[k * row + i];
#pragma unroll
  for (int k = 0; k < 40; ++k) y[k * row + i] = values[k] * values[(k * 7 + 3) % 40];
}

__global__ void nothing() {}

// y = 2 x, and one element past the end.
__global__ void past_the_end(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) y[i] = i < n ? 2 * x[i] : 0.0f;
}

// y = x turned around within each 256, without the barrier that it takes.
__global__ void races(const float* x, float* y) {
  __shared__ float row[256];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  row[threadIdx.x] = x[i];
  y[i] = row[255 - threadIdx.x];
}

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream(); }

at::Tensor run_stream_wide(const at::Tensor& x) {
  auto y = at::empty_like(x);
  const int64_t n = x.numel() / 4;
  stream_wide<<<(n + 255) / 256, 256, 0, stream()>>>(
      reinterpret_cast<const float4*>(x.const_data_ptr<float>()),
      reinterpret_cast<float4*>(y.mutable_data_ptr<float>()), n);
  return y;
}

at::Tensor run_strided(const at::Tensor& x) {
  auto y = at::empty_like(x);
  const int n = x.size(0);
  strided<<<dim3((n + 255) / 256, n), 256, 0, stream()>>>(x.const_data_ptr<float>(),
                                                          y.mutable_data_ptr<float>(), n);
  return y;
}

at::Tensor run_conflicts(const at::Tensor& x) {
  auto y = at::empty_like(x);
  conflicts<<<x.size(0), dim3(32, 32), 0, stream()>>>(x.const_data_ptr<float>(),
                                                      y.mutable_data_ptr<float>());
  return y;
}

at::Tensor run_spills(const at::Tensor& x) {
  auto y = at::empty_like(x);
  spills<<<x.size(1) / 1024, 1024, 0, stream()>>>(x.const_data_ptr<float>(),
                                                  y.mutable_data_ptr<float>(), x.size(1));
  return y;
}

at::Tensor run_nothing(const at::Tensor& x) {
  nothing<<<1, 1, 0, stream()>>>();
  return x.detach();
}

at::Tensor run_past_the_end(const at::Tensor& x) {
  auto y = at::empty_like(x);
  const int n = x.numel();
  past_the_end<<<n / 256 + 1, 256, 0, stream()>>>(x.const_data_ptr<float>(),
                                                  y.mutable_data_ptr<float>(), n);
  return y;
}

at::Tensor run_races(const at::Tensor& x) {
  auto y = at::empty_like(x);
  races<<<x.numel() / 256, 256, 0, stream()>>>(x.const_data_ptr<float>(),
                                               y.mutable_data_ptr<float>());
  return y;
}

}  // namespace

TORCH_LIBRARY(profile_cases, m) {
  m.def("stream_wide(Tensor x) -> Tensor", run_stream_wide);
  m.def("strided(Tensor x) -> Tensor", run_strided);
  m.def("conflicts(Tensor x) -> Tensor", run_conflicts);
  m.def("spills(Tensor x) -> Tensor", run_spills);
  m.def("nothing(Tensor x) -> Tensor", run_nothing);
  m.def("past_the_end(Tensor x) -> Tensor", run_past_the_end);
  m.def("races(Tensor x) -> Tensor", run_races);
}
