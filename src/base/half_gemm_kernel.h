// Declares the inner loops of bfloat16 products with F32 sums. This header uses no inline functions of the
// standard library. Files for newer processors include the header, and the linker could take their copies of
// such functions for code that runs everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvant {

inline constexpr int kHalfGemmPanel = 32;  // columns of b that are multiplied at once

// A 32-bit word of `pairs` holds two bfloat16 numbers that are neighbours in k. An odd k ends with a zero.
struct HalfGemmKernel {
  // Rounds x [rows, k], whose rows lie `stride` values apart, to pairs [rows, (k + 1) / 2].
  void (*round_rows)(const float* x, std::ptrdiff_t stride, int rows, int k, std::uint32_t* pairs);
  // Packs a panel of b, [k, kHalfGemmPanel], as pairs [(k + 1) / 2, kHalfGemmPanel].
  void (*pack)(const float* panel, int k, std::uint32_t* pairs);
  // Computes c [m, n_cols] = or += a [m, n_pairs] times the first n_cols columns of b, a panel that pack()
  // has written.
  void (*multiply)(int m, int n_cols, int n_pairs, const std::uint32_t* a, std::ptrdiff_t a_row,
                   const std::uint32_t* b, bool accumulate, float* c, std::ptrdiff_t c_stride);
};

const HalfGemmKernel* half_gemm_kernel();  // null if this build does not contain the loops

}  // namespace kvant
