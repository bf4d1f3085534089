// Wraps instructions for which C++ has no name. sm_80 lacks some of the instructions. There, some wrappers
// emulate their instruction, and others do nothing. Kernels must call the remaining wrappers only on sm_90a.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "device/cuda/common/architecture.cuh"

namespace kvant::cuda {

// Computes c[16 x 8] += a[16 x 16] b[16 x 8] with half-precision factors and F32 sums. Subnormal factors are
// exact.
__device__ __forceinline__ void mma_f16(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                        std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_bf16(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                         std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// mma_s8() and mma_s8_u8() compute c[16 x 8] += a[16 x 32] b[32 x 8] for bytes. a is signed. b is signed in
// mma_s8() and unsigned in mma_s8_u8().
__device__ __forceinline__ void mma_s8(int (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                       std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_s8_u8(int (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                          std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four 8 x 8 matrices of 16-bit numbers from shared memory. Lane l has the address of row l % 8 of
// matrix l / 8, which is 16-byte aligned. Lane g * 4 + t gets numbers 2t and 2t + 1 of row g of each matrix.
__device__ __forceinline__ void load_matrices(std::uint32_t (&x)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}

// Loads the transposes of four matrices with the addresses of load_matrices(). Lane g * 4 + t gets number g
// of rows 2t and 2t + 1 of each matrix.
__device__ __forceinline__ void load_transposed_matrices(std::uint32_t (&x)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}

// Transposes an 8 x 8 matrix of 16-bit numbers. Lane g * 4 + t holds (g, 2t) and (g, 2t + 1).
__device__ __forceinline__ std::uint32_t transpose_8x8(std::uint32_t x) {
  std::uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Computes (a & Mask) | (b & ~Mask), for which the compiler would use two instructions.
template <std::uint32_t Mask>
__device__ __forceinline__ std::uint32_t select_bits(std::uint32_t a, std::uint32_t b) {
  std::uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xe2;" : "=r"(y) : "r"(a), "n"(Mask), "r"(b));
  return y;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ std::uint32_t multiply_half2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t c;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

// Computes a b + c in both halves of the words.
__device__ __forceinline__ std::uint32_t fma_half2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ __forceinline__ std::uint32_t subtract_half2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t c;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

// Returns the maximum of the 16-bit numbers in each half of the words.
__device__ __forceinline__ std::uint32_t max_u16x2(std::uint32_t a, std::uint32_t b) {
  if constexpr (Architecture::kPackedMaxima) {
    std::uint32_t c;
    asm("max.u16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
  } else {
    return __vmaxu2(a, b);
  }
}

// pack_unsigned_bytes() and pack_signed_bytes() round two numbers and saturate the results to 0 .. 255 or to
// -128 .. 127. The two integers become the lower bytes of a word, and the two low bytes of `upper` become its
// upper bytes. A call takes one instruction if the GPU has it (Architecture::kPacksBytes).
__device__ __forceinline__ std::uint32_t pack_unsigned_bytes(float x, float y, std::uint32_t upper) {
  std::uint32_t bytes;
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;"
      : "=r"(bytes)
      : "r"(__float2int_rn(y)), "r"(__float2int_rn(x)), "r"(upper));
  return bytes;
}
__device__ __forceinline__ std::uint32_t pack_signed_bytes(float x, float y, std::uint32_t upper) {
  std::uint32_t bytes;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;"
      : "=r"(bytes)
      : "r"(__float2int_rn(y)), "r"(__float2int_rn(x)), "r"(upper));
  return bytes;
}

// Converts two 8-bit floats (e4m3) in the low bits. NaN, which does not occur in pages, becomes 480 on sm_80.
__device__ __forceinline__ std::uint32_t half2_from_e4m3(std::uint32_t pair) {
  if constexpr (Architecture::kConvertsE4m3) {
    std::uint32_t y;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(static_cast<std::uint16_t>(pair)));
    return y;
  } else {
    // Half precision has one exponent bit more than e4m3, and its smallest exponent is lower by 8.
    constexpr std::uint32_t kTwoToThe8th = 0x5c005c00;
    const std::uint32_t upper = __byte_perm(pair, 0, 0x1404);
    return multiply_half2((upper & 0x80008000U) | (upper & 0x7f007f00U) >> 1, kTwoToThe8th);
  }
}

__device__ __forceinline__ std::uint32_t pack_half2(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ std::uint32_t pack_bf16x2(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ float2 unpack_half2(std::uint32_t packed) {
  return __half22float2(*reinterpret_cast<const __half2*>(&packed));
}

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Loads a word of shared memory that another warp may change concurrently.
__device__ __forceinline__ int load_shared(std::uint32_t address) {
  int x;
  asm volatile("ld.volatile.shared.s32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
// Loads 16 bytes that asynchronous copies may have written.
__device__ __forceinline__ uint4 load_shared_16(std::uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}
__device__ __forceinline__ void store_shared(std::uint32_t address, int x) {
  asm volatile("st.volatile.shared.s32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
__device__ __forceinline__ int add_shared(std::uint32_t address, int x) {
  int before;
  asm volatile("atom.shared.add.s32 %0, [%1], %2;" : "=r"(before) : "r"(address), "r"(x) : "memory");
  return before;
}

// Barriers in shared memory count arrivals. On sm_90a they also count bytes of asynchronous copies.
__device__ __forceinline__ void barrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ bool barrier_test(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}

// Makes initialized barriers visible to asynchronous copies. Other threads must also synchronize before they
// use the barriers.
__device__ __forceinline__ void publish_barriers() {
  if constexpr (Architecture::kBulkCopies) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done = 0;
  while (done == 0) {
    if constexpr (Architecture::kBarriersSuspend) {
      asm volatile(
          "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(barrier), "r"(parity)
          : "memory");
    } else {
      done = barrier_test(barrier, parity) ? 1 : 0;
    }
  }
}

// Arrives at the barrier. The barrier's phase then ends only after `bytes` more bytes have been copied.
__device__ __forceinline__ void expect_bytes(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Copies `bytes` (a multiple of 16) from global to shared memory and counts them at `barrier`. The L2 cache
// may evict the bytes first, because only page tables and partial results are read twice.
__device__ __forceinline__ void bulk_copy(std::uint32_t to, const void* from, std::uint32_t bytes,
                                          std::uint32_t barrier) {
  asm volatile(
      "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], policy;\n}" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Starts an asynchronous copy of 16 bytes from global to shared memory by this thread. The copy has no L2
// policy. With a policy, assemblers (CUDA 13.0 and 13.4, a driver's) emit an illegal instruction whose
// descriptor is never set.
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Makes a group of all copies that this thread has started since the last call.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most the last `Pending` groups of this thread's copies are unfinished.
template <int Pending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// Makes this thread arrive at the barrier once all its copies so far have finished. The arrival is one of the
// arrivals for which the barrier was initialized.
__device__ __forceinline__ void arrive_after_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Reads threadIdx.x at this point and not earlier, so values that depend on it take no registers during an
// earlier loop.
__device__ __forceinline__ int thread_here() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

__device__ __forceinline__ void prefetch_to_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// take_registers() and give_up_registers() set the number of registers of this warp from now on. All warps of
// the warpgroup must call the function (sm_90a). A warpgroup may take registers that the CTA's other
// warpgroups have given up.
template <int N>
__device__ __forceinline__ void take_registers() {
  if constexpr (Architecture::kWarpgroupProducts)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void give_up_registers() {
  if constexpr (Architecture::kWarpgroupProducts)
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// Waits until earlier kernels have finished and their writes are visible. On sm_80 the function does nothing,
// because a kernel starts only after earlier kernels.
__device__ __forceinline__ void wait_for_predecessors() {
  if constexpr (Architecture::kOverlapsLaunches) asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Lets the next kernel start on SMs that this kernel has left.
__device__ __forceinline__ void admit_successors() {
  if constexpr (Architecture::kOverlapsLaunches) asm volatile("griddepcontrol.launch_dependents;");
}

// cluster_arrive() says that this thread has arrived, and cluster_wait() waits for all threads of the
// cluster. The barriers that publish_barriers() published before are then visible to all, but other writes
// need not be. An arrival that makes all writes visible would wait for them. Launches without clusters must
// not call either.
__device__ __forceinline__ void cluster_arrive() {
  if constexpr (Architecture::kClusters) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  if constexpr (Architecture::kClusters) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// Returns the address that `address` of this CTA's shared memory has in CTA `rank` of the cluster.
__device__ __forceinline__ std::uint32_t address_in_cluster(std::uint32_t address, int rank) {
  std::uint32_t there = 0;
  if constexpr (Architecture::kClusters)
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// Stores two or four numbers in the shared memory of a CTA of the cluster, without waiting. `barrier` lies in
// the same CTA and counts the bytes when the numbers are visible. Both addresses are those of
// address_in_cluster(). `to` is aligned to the numbers' size.
__device__ __forceinline__ void send_to_cluster(std::uint32_t to, const float (&x)[2],
                                                std::uint32_t barrier) {
  if constexpr (Architecture::kClusters)
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
        "f"(x[0]), "f"(x[1]), "r"(barrier)
        : "memory");
}
__device__ __forceinline__ void send_to_cluster(std::uint32_t to, const float (&x)[4],
                                                std::uint32_t barrier) {
  if constexpr (Architecture::kClusters)
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
            to),
        "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier)
        : "memory");
}

// Waits like barrier_wait(). What other CTAs of the cluster have sent to this CTA is then visible.
__device__ __forceinline__ void barrier_wait_for_cluster(std::uint32_t barrier, std::uint32_t parity) {
  if constexpr (Architecture::kClusters) {
    std::uint32_t done = 0;
    while (done == 0)
      asm volatile(
          "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(barrier), "r"(parity)
          : "memory");
  }
}

// Waits for all threads of the cluster. The writes of each thread to shared memory are then visible to all.
__device__ __forceinline__ void cluster_sync() {
  if constexpr (Architecture::kClusters) {
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
  }
}

// Returns the rank of this CTA in its cluster, whose CTAs lie along x of the grid, and the number of CTAs.
// Launches without clusters have clusters of one CTA.
__device__ __forceinline__ int rank_in_cluster() {
  std::uint32_t rank = 0;
  if constexpr (Architecture::kClusters) asm("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(rank));
  return static_cast<int>(rank);
}
__device__ __forceinline__ int ctas_of_cluster() {
  std::uint32_t n = 1;
  if constexpr (Architecture::kClusters) asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n));
  return static_cast<int>(n);
}

// Returns the object that CTA `rank` of the cluster has at the address of `here` in shared memory.
template <class T>
__device__ __forceinline__ T& of_cluster(T& here, int rank) {
  T* there = &here;
  if constexpr (Architecture::kClusters) asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(&here), "r"(rank));
  return *there;
}

// Loads two numbers from the shared memory of CTA `rank` of the cluster, where they have the address of
// `here`. `here` must be 8-byte aligned.
__device__ __forceinline__ float2 load_of_cluster(const float2& here, int rank) {
  float2 there{};
  if constexpr (Architecture::kClusters) {
    std::uint32_t address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(address)
                 : "r"(shared_address(&here)), "r"(rank));
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
                 : "=f"(there.x), "=f"(there.y)
                 : "r"(address)
                 : "memory");
  }
  return there;
}

// Returns `pointer`, but the compiler cannot assume anything about the result.
template <class T>
__device__ __forceinline__ T* opaque(T* pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
}

// load_relaxed() loads and store_relaxed() stores numbers that other CTAs access concurrently.
__device__ __forceinline__ float2 load_relaxed(const float2* from) {
  float2 x;
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(from) : "memory");
  return x;
}
__device__ __forceinline__ void store_relaxed(float2* to, float2 x) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x.x), "f"(x.y) : "memory");
}

// Adds `x` to a counter that all CTAs share, and returns the previous value.
__device__ __forceinline__ std::int32_t add_relaxed(std::int32_t* counter, std::int32_t x) {
  std::int32_t before;
  asm volatile("atom.add.relaxed.gpu.global.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(x)
               : "memory");
  return before;
}

// Adds `x` to a counter that all CTAs share, and returns the previous value. Earlier writes of this warp
// become visible to every warp that reads the new value. Earlier writes of the warps that added before are
// visible to this warp.
__device__ __forceinline__ std::int32_t add_acquire_release(std::int32_t* counter, std::int32_t x) {
  std::int32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(x)
               : "memory");
  return before;
}

__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Waits like named_barrier(). Returns whether `x` is true in any of the threads.
__device__ __forceinline__ bool named_barrier_any(int id, int threads, bool x) {
  std::uint32_t any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbar.red.or.pred q, %2, %3, p;\nselp.u32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(x ? 1 : 0), "r"(id), "r"(threads)
      : "memory");
  return any != 0;
}

}  // namespace kvant::cuda
