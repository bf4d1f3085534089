// Multiplies rows in registers or shared memory by a matrix in shared memory. Warpgroups of 128 threads do so
// on sm_90a, and warps on sm_80. The search for nearest centroids (seal/seal_vectors.cuh) uses these
// products.
#pragma once

#include <cstdint>

#include "device/cuda/common/architecture.cuh"

namespace kvant::cuda {

// Makes data in shared memory visible to wgmma. The threads must also synchronize before they start products.
__device__ __forceinline__ void publish_to_wgmma() {
  if constexpr (Architecture::kWarpgroupProducts) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Describes a matrix in shared memory that consists of contiguous blocks of 8 x 8 16-bit numbers. `along` and
// `across` are the bytes between neighbouring blocks along and across the contraction.
__device__ __forceinline__ std::uint64_t wgmma_matrix(const void* begin, int along, int across) {
  const auto address = static_cast<std::uint64_t>(__cvta_generic_to_shared(begin));
  return (address & 0x3ffff) >> 4 | static_cast<std::uint64_t>(along >> 4) << 16 |
         static_cast<std::uint64_t>(across >> 4) << 32;
}

// Computes the product of multiply_64_by_256() on sm_80, where each warp multiplies its own 16 rows. b
// describes 16-bit numbers as wgmma_matrix() does. Only the first `Along` numbers of the contraction, 8 or
// 16, may differ from 0.
template <int Along>
__device__ __forceinline__ void multiply_16_by_256(std::uint32_t (&d)[64], const std::uint32_t (&a)[4],
                                                   const void* b, int along, int across) {
  const auto lane = threadIdx.x % 32;
  const unsigned char* const own = static_cast<const unsigned char*>(b) + lane * 4;
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    const auto* const low = reinterpret_cast<const std::uint32_t*>(own + j * across);
    if constexpr (Along == 16) {
      const auto* const high = reinterpret_cast<const std::uint32_t*>(own + j * across + along);
      asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%8, %8};"
          : "=r"(d[2 * j]), "=r"(d[2 * j + 1])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(*low), "r"(*high), "r"(0));
    } else {
      asm("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%5, %5};"
          : "=r"(d[2 * j]), "=r"(d[2 * j + 1])
          : "r"(a[0]), "r"(a[1]), "r"(*low), "r"(0));
    }
  }
}

// Computes d[64 x 256] = a[64 x 16] b[16 x 256] in half precision. Each warp holds 16 rows in the layout of
// mma.m16n8k16. For columns 8j + 2t and 8j + 2t + 1, d[2j] holds row g and d[2j + 1] holds row g + 8.
__device__ __forceinline__ void multiply_64_by_256(std::uint32_t (&d)[64], const std::uint32_t (&a)[4],
                                                   std::uint64_t b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, 0, 0;\n"
      "wgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f16.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
      " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
      " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
      " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, accumulate, 1, 1, 0;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 0;\n"
      "}"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]), "=r"(d[4]), "=r"(d[5]), "=r"(d[6]), "=r"(d[7]),
        "=r"(d[8]), "=r"(d[9]), "=r"(d[10]), "=r"(d[11]), "=r"(d[12]), "=r"(d[13]), "=r"(d[14]), "=r"(d[15]),
        "=r"(d[16]), "=r"(d[17]), "=r"(d[18]), "=r"(d[19]), "=r"(d[20]), "=r"(d[21]), "=r"(d[22]),
        "=r"(d[23]), "=r"(d[24]), "=r"(d[25]), "=r"(d[26]), "=r"(d[27]), "=r"(d[28]), "=r"(d[29]),
        "=r"(d[30]), "=r"(d[31]), "=r"(d[32]), "=r"(d[33]), "=r"(d[34]), "=r"(d[35]), "=r"(d[36]),
        "=r"(d[37]), "=r"(d[38]), "=r"(d[39]), "=r"(d[40]), "=r"(d[41]), "=r"(d[42]), "=r"(d[43]),
        "=r"(d[44]), "=r"(d[45]), "=r"(d[46]), "=r"(d[47]), "=r"(d[48]), "=r"(d[49]), "=r"(d[50]),
        "=r"(d[51]), "=r"(d[52]), "=r"(d[53]), "=r"(d[54]), "=r"(d[55]), "=r"(d[56]), "=r"(d[57]),
        "=r"(d[58]), "=r"(d[59]), "=r"(d[60]), "=r"(d[61]), "=r"(d[62]), "=r"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
      : "memory");
}

}  // namespace kvant::cuda
