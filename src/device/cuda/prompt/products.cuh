// Starts, ends and awaits matrix products by warpgroups (sm_90a). Products run asynchronously, and their sums
// lie in registers.
#pragma once

#include <cstdint>

namespace kvant::cuda {

// Describes a matrix in shared memory whose rows are RowBytes bytes along the contraction, swizzled
// (tile_layout.cuh).
template <int RowBytes>
__device__ __forceinline__ std::uint64_t swizzled_matrix(std::uint32_t address) {
  constexpr std::uint64_t kSwizzle = RowBytes == 128 ? 1 : 2;
  return (address & 0x3ffff) >> 4 | std::uint64_t{1} << 16 | std::uint64_t{8 * RowBytes >> 4} << 32 |
         kSwizzle << 62;
}

// Starts a group of products. No code may touch registers that products read or write until finish_products()
// returns.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until all groups except the last `Pending` groups have finished.
template <int Pending>
__device__ __forceinline__ void finish_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Prevents the compiler from moving uses of the registers across this point.
template <int N>
__device__ __forceinline__ void hold_registers(std::uint32_t (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(x[i])::"memory");
}
template <int N>
__device__ __forceinline__ void hold_registers(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

}  // namespace kvant::cuda
