// Hopper's own instructions, each as one function: mbarriers, bulk tensor copies (TMA), products of
// a warpgroup (wgmma) and thread block clusters. PTX ISA 8.0, target sm_90a; nothing here is used
// outside __CUDA_ARCH_FEAT_SM90_ALL.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace kernelbench_dist::cuda::hopper {

// An address in shared memory, as PTX takes it. In a cluster the same number names the same place
// of each block's own shared memory.
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- Clusters

__device__ __forceinline__ uint32_t rank_in_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ uint32_t blocks_in_cluster() {
  uint32_t count;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
  return count;
}

// Every thread of every block of the cluster calls it, in any order within a warp.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// The place in the shared memory of block `rank` that `address` is in this block's.
__device__ __forceinline__ uint32_t in_block(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

__device__ __forceinline__ float4 load_from_block(uint32_t there) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(there)
               : "memory");
  return v;
}

// ---- Registers: the most that each thread of a warpgroup has from here on, a multiple of 8.

template <int COUNT>
__device__ __forceinline__ void give_back_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
// Waits until so many are free.
template <int COUNT>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- mbarriers. A phase ends when `arrivals` have come and all bytes announced have landed.

__device__ __forceinline__ void init_barrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// By the thread that initialised them, before the block or cluster meets: the other blocks and the
// copy engine see them too.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void arrive_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Of the block's own scope: with .release.cluster a fence of the whole GPU would go before it, and
// the reads by wgmma that it reports are over once they have been waited for.
__device__ __forceinline__ void arrive_in_block(uint32_t barrier, uint32_t rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(in_block(barrier, rank))
               : "memory");
}

// Returns when the phase of this parity has ended. Before the first phase, parity 1 has.
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (!done);
}

// Shared memory written by ordinary stores: what the tensor cores and the copy engine do after the
// next barrier sees it.
__device__ __forceinline__ void publish_stores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- TMA: a box of a rank-3 tensor from global to shared memory. All of the box's bytes count
// towards the barrier, also those out of bounds, which are filled with zeros.

__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ __forceinline__ void copy_box(const CUtensorMap& map, uint32_t to, uint32_t barrier,
                                         int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}

// To the same place in each block of the mask, and counted by each one's own barrier.
__device__ __forceinline__ void copy_box_to_blocks(const CUtensorMap& map, uint32_t to,
                                                   uint32_t barrier, int c0, int c1, int c2,
                                                   uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "h"(mask)
      : "memory");
}

// ---- wgmma: D (64 x N, fp32, in registers) += A (64 x 32 bytes) * B (N x 32 bytes)^T, both in
// shared memory with their 32 bytes side by side ("K-major").

// Where an operand starts. It lies in rows of 128 bytes, its 16-byte chunks permuted within groups
// of 8 rows (1024 bytes, on a 1024-byte boundary) as TMA's 128-byte swizzle does it. From bit 0:
// the address / 16; from bit 16 the leading offset, which this layout has no use for; from bit 32
// the 1024 bytes between groups of rows, / 16; bits 62 to 63: 1 for this swizzle. The hardware
// swizzles address bits, so 32 bytes further along K is a start address 32 bytes further. A place
// further on has its offset / 16 added to this number.
__device__ __forceinline__ uint64_t descriptor(uint32_t address) {
  constexpr uint64_t kLayout = uint64_t{1} << 16 | uint64_t{1024 / 16} << 32 | uint64_t{1} << 62;
  return kLayout | (address & 0x3FFFF) >> 4;
}

// Before the first product of a group: what came before has written the accumulators.
__device__ __forceinline__ void fence_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most `PENDING` of the committed groups are still running.
template <int PENDING>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving reads and writes of accumulators across where this stands.
template <int N>
__device__ __forceinline__ void pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

template <typename T>
inline constexpr bool kIsHalf = false;
template <>
inline constexpr bool kIsHalf<__half> = true;

// The names of 4, 8, ... 128 accumulators in PTX, and the registers behind them.
#define KBD_P4 "%0, %1, %2, %3"
#define KBD_P8 KBD_P4 ", %4, %5, %6, %7"
#define KBD_P16 KBD_P8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define KBD_P32 \
  KBD_P16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KBD_P64                                                                      \
  KBD_P32                                                                            \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define KBD_P128                                                                           \
  KBD_P64                                                                                  \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"       \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"       \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110" \
  ", %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124"   \
  ", %125, %126, %127"
#define KBD_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define KBD_D8(i) KBD_D4(i), KBD_D4(i + 4)
#define KBD_D16(i) KBD_D8(i), KBD_D8(i + 8)
#define KBD_D32(i) KBD_D16(i), KBD_D16(i + 16)
#define KBD_D64(i) KBD_D32(i), KBD_D32(i + 32)
#define KBD_D128(i) KBD_D64(i), KBD_D64(i + 64)

// One instruction: SHAPE as in m64n8k16.f32.bf16.bf16; REGISTERS accumulators, so that the operands
// after them are %A, %B and %C; FLAGS after the scale of D (A and B as they are, not transposed).
#define KBD_WGMMA(SHAPE, REGISTERS, A, B, C, FLAGS)                                             \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #C                                          \
               ", 0;\n"                                                                         \
               "wgmma.mma_async.sync.aligned." SHAPE " {" KBD_P##REGISTERS "}, %" #A ", %" #B   \
                                                                           ", p, " FLAGS ";\n}" \
               : KBD_D##REGISTERS(0)                                                            \
               : "l"(a), "l"(b), "r"(add))
#define KBD_WGMMA_OF_TYPE(N, REGISTERS, A, B, C)                                  \
  if constexpr (N_ == N) {                                                        \
    if constexpr (sizeof(T) == 4)                                                 \
      KBD_WGMMA("m64n" #N "k8.f32.tf32.tf32", REGISTERS, A, B, C, "1, 1");        \
    else if constexpr (kIsHalf<T>)                                                \
      KBD_WGMMA("m64n" #N "k16.f32.f16.f16", REGISTERS, A, B, C, "1, 1, 0, 0");   \
    else                                                                          \
      KBD_WGMMA("m64n" #N "k16.f32.bf16.bf16", REGISTERS, A, B, C, "1, 1, 0, 0"); \
  }

// T: float (which is read as TF32), __half or __nv_bfloat16.
// d = a * b^T, plus d where `add` is not 0. Thread t of the warpgroup holds in d[4 j + 2 i + c] the
// element of row 16 (t / 32) + t % 32 / 4 + 8 i and column 8 j + 2 (t % 4) + c.
template <typename T, int N_>
__device__ __forceinline__ void multiply(float (&d)[N_ / 2], uint64_t a, uint64_t b, int add) {
  static_assert(N_ == 8 || N_ == 16 || N_ == 32 || N_ == 64 || N_ == 128 || N_ == 256);
  KBD_WGMMA_OF_TYPE(8, 4, 4, 5, 6)
  KBD_WGMMA_OF_TYPE(16, 8, 8, 9, 10)
  KBD_WGMMA_OF_TYPE(32, 16, 16, 17, 18)
  KBD_WGMMA_OF_TYPE(64, 32, 32, 33, 34)
  KBD_WGMMA_OF_TYPE(128, 64, 64, 65, 66)
  KBD_WGMMA_OF_TYPE(256, 128, 128, 129, 130)
}

#undef KBD_WGMMA_OF_TYPE
#undef KBD_WGMMA

}  // namespace kernelbench_dist::cuda::hopper
