// The source of sass.txt and usage.txt, for sm_90a, by the nvcc and cuobjdump that they name:
//     nvcc -gencode arch=compute_90a,code=sm_90a -c kernels.cu -o kernels.o
//     cuobjdump --dump-sass kernels.o > sass.txt
//     cuobjdump --dump-resource-usage kernels.o > usage.txt
// The second words of the machine code, and the codes in hexadecimal, were taken out of sass.txt.

#include <cuda_pipeline.h>

// 16 bytes a lane.
__global__ void wide(const float4* x, float4* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i];
}

// 1 byte a lane loaded, 2 stored.
__global__ void bytes(const unsigned char* x, unsigned short* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i];
}

// 4 bytes a lane through 1 KiB of shared memory, with one barrier.
__global__ void reverse(const float* x, float* y, int n) {
  __shared__ float row[256];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  row[threadIdx.x] = i < n ? x[i] : 0.0f;
  __syncthreads();
  if (i < n) y[i] = row[255 - threadIdx.x];
}

// One asynchronous copy a thread.
__global__ void async(const float4* x, float4* y) {
  __shared__ float4 row[128];
  __pipeline_memcpy_async(&row[threadIdx.x], &x[threadIdx.x], sizeof(float4));
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  y[threadIdx.x] = row[127 - threadIdx.x];
}

// Forty values are alive at once, and 32 registers are allowed.
__global__ void __launch_bounds__(1024, 2) spills(const float* x, float* y) {
  float values[40];
#pragma unroll
  for (int k = 0; k < 40; ++k) values[k] = x[k * 1024 + threadIdx.x];
#pragma unroll
  for (int k = 0; k < 40; ++k) y[k * 1024 + threadIdx.x] = values[k] * values[(k * 7 + 3) % 40];
}
