// Defines the loops of gemm_kernels.h for vectors of kLanes floats and strips of kStrip rows. The including
// file defines kLanes and kStrip. Everything here is local to the including file, because each such file is
// compiled for other instructions.
#include <cstddef>
#include <cstring>

#include "base/gemm_kernels.h"

namespace kvant {
namespace {

using Vector = float __attribute__((vector_size(kLanes * sizeof(float))));

constexpr int kPanel = 2 * kLanes;
static_assert(kPanel <= kMaxGemmPanel);

inline __attribute__((always_inline)) void load(const float* from, Vector& v) {
  std::memcpy(&v, from, sizeof(v));
}

// Multiplies `rows` rows of a, and keeps the sums of c in registers. Elements of a are read in place. Each
// base pointer serves three rows, because one addressing mode reaches all three.
template <int rows>
inline __attribute__((always_inline)) void multiply_strip(int n_cols, int k, const float* a,
                                                          std::ptrdiff_t a_row, std::ptrdiff_t a_col,
                                                          const float* b, std::ptrdiff_t b_stride,
                                                          bool accumulate, float* c,
                                                          std::ptrdiff_t c_stride) {
  constexpr int kBases = (rows + 2) / 3;
  Vector sums[rows][2] = {};
  const float* base[kBases];
#pragma GCC unroll 16
  for (int i = 0; i < kBases; ++i) base[i] = a + 3 * i * a_row;
  for (int p = 0; p < k; ++p) {
    Vector b0, b1;
    load(b, b0);
    load(b + kLanes, b1);
    b += b_stride;
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const float x = base[r / 3][r % 3 * a_row];
      sums[r][0] += x * b0;
      sums[r][1] += x * b1;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kBases; ++i) base[i] += a_col;
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
    float* out = c + r * c_stride;
    if (n_cols == kPanel) {
      if (accumulate) {
        Vector c0, c1;
        load(out, c0);
        load(out + kLanes, c1);
        sums[r][0] += c0;
        sums[r][1] += c1;
      }
      std::memcpy(out, sums[r], sizeof(sums[r]));
    } else {
      float row[kPanel];
      std::memcpy(row, sums[r], sizeof(row));
      for (int i = 0; i < n_cols; ++i) out[i] = accumulate ? out[i] + row[i] : row[i];
    }
  }
}

void multiply(int m, int n_cols, int k, const float* a, std::ptrdiff_t a_row, std::ptrdiff_t a_col,
              const float* b, std::ptrdiff_t b_stride, bool accumulate, float* c, std::ptrdiff_t c_stride) {
  constexpr int kShortStrip = kStrip / 3;
  int row = 0;
  for (; row + kStrip <= m; row += kStrip) {
    multiply_strip<kStrip>(n_cols, k, a + row * a_row, a_row, a_col, b, b_stride, accumulate,
                           c + row * c_stride, c_stride);
  }
  for (; row + kShortStrip <= m; row += kShortStrip) {
    multiply_strip<kShortStrip>(n_cols, k, a + row * a_row, a_row, a_col, b, b_stride, accumulate,
                                c + row * c_stride, c_stride);
  }
  for (; row < m; ++row) {
    multiply_strip<1>(n_cols, k, a + row * a_row, a_row, a_col, b, b_stride, accumulate, c + row * c_stride,
                      c_stride);
  }
}

}  // namespace
}  // namespace kvant
