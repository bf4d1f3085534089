// Multiplies by warpgroups with 32 columns in shared memory (sm_90a), and stores such columns. Decoding that
// a warpgroup shares (decode/warpgroup_decoding.cuh) uses these products.
#pragma once

#include <cstdint>

namespace kvant::cuda {

// Between begin_columns() and await_columns(), code must not touch registers that products read or write. The
// compiler may move other memory accesses across both calls. Before products begin, a barrier must therefore
// publish the data that they read. Another barrier must follow the products before that memory is written
// again.
__device__ __forceinline__ void begin_columns() {
  asm volatile("wgmma.fence.sync.aligned;");
}
__device__ __forceinline__ void commit_columns() {
  asm volatile("wgmma.commit_group.sync.aligned;");
}
// Waits until at most the last `Pending` groups of products are unfinished.
template <int Pending>
__device__ __forceinline__ void await_columns() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending));
}
// Keeps the compiler from moving accesses to these registers across this point.
__device__ __forceinline__ void hold_columns(float (&d)[4][4]) {
#pragma unroll
  for (auto& of_set : d) {
#pragma unroll
    for (float& x : of_set) asm volatile("" : "+f"(x));
  }
}

// Computes d[64 x 32] = a[64 x 16] b[16 x 32], or += if `Accumulate` is true, with half-precision factors and
// F32 sums. Each warp holds 16 rows of a and d in the layout of mma.m16n8k16. d[set] has columns 8 set to 8
// set + 7.
template <bool Accumulate>
__device__ __forceinline__ void multiply_columns(float (&d)[4][4], std::uint32_t a0, std::uint32_t a1,
                                                 std::uint32_t a2, std::uint32_t a3, std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, accumulate, 1, 1, 0;\n}"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "n"(Accumulate ? 1 : 0));
}

// Holds the A operands of two products with the same columns, in separate registers.
struct TwoTiles {
  std::uint32_t a[2][4];

  __device__ __forceinline__ void set(int m, std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                      std::uint32_t a3) {
    a[m][0] = a0;
    a[m][1] = a1;
    a[m][2] = a2;
    a[m][3] = a3;
  }
  // Starts both products as one group.
  template <bool Accumulate>
  __device__ __forceinline__ void multiply(float (&d)[2][4][4], std::uint64_t b) {
#pragma unroll
    for (auto& tile : a) {
#pragma unroll
      for (std::uint32_t& x : tile) asm volatile("" : "+r"(x));
    }
    begin_columns();
#pragma unroll
    for (int m = 0; m < 2; ++m) multiply_columns<Accumulate>(d[m], a[m][0], a[m][1], a[m][2], a[m][3], b);
    commit_columns();
  }
};

// store_matrices() stores four 8 x 8 matrices of 16-bit numbers, and store_transposed_matrices() their
// transposes. Lane g * 4 + t passes numbers 2t and 2t + 1 of row g of each matrix in x0 to x3. Lane l passes
// the address of row l % 8 of matrix l / 8. The address must be a multiple of 16 bytes.
__device__ __forceinline__ void store_matrices(std::uint32_t address, std::uint32_t x0, std::uint32_t x1,
                                               std::uint32_t x2, std::uint32_t x3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x0),
               "r"(x1), "r"(x2), "r"(x3)
               : "memory");
}
__device__ __forceinline__ void store_transposed_matrices(std::uint32_t address, std::uint32_t x0,
                                                          std::uint32_t x1, std::uint32_t x2,
                                                          std::uint32_t x3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(x0), "r"(x1), "r"(x2), "r"(x3)
               : "memory");
}

}  // namespace kvant::cuda
