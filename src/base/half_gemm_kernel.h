// The inner loops of products of bfloat16 numbers, which are summed in F32. (Without inline functions of the
// standard library: compiled with other flags there, they could be linked into code that runs everywhere.)
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvant {

inline constexpr int kHalfGemmPanel = 32;  // columns of b that are multiplied at once

// Two numbers that follow one another in k make a word; an odd k ends with a zero.
struct HalfGemmKernel {
  // x [rows, k], `stride` from row to row, becomes pairs [rows, (k + 1) / 2].
  void (*round_rows)(const float* x, std::ptrdiff_t stride, int rows, int k, std::uint32_t* pairs);
  // A panel of b, [k, kHalfGemmPanel], becomes [(k + 1) / 2, kHalfGemmPanel].
  void (*pack)(const float* panel, int k, std::uint32_t* pairs);
  // c [m, n_cols] = or += a [m, n_pairs] times such a panel, of which the first n_cols columns are wanted.
  void (*multiply)(int m, int n_cols, int n_pairs, const std::uint32_t* a, std::ptrdiff_t a_row,
                   const std::uint32_t* b, bool accumulate, float* c, std::ptrdiff_t c_stride);
};

const HalfGemmKernel* half_gemm_kernel();  // null: not of this build

}  // namespace kvant
