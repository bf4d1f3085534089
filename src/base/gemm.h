// Products of F32 matrices by one thread: teams call it side by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvant {

// Element (row, col) lies at data[row * row_stride + col * col_stride]; one of the strides is usually 1.
struct GemmOperand {
  const float* data;
  std::ptrdiff_t row_stride;
  std::ptrdiff_t col_stride;
};

inline GemmOperand row_major(const float* data, std::ptrdiff_t stride) {
  return {data, stride, 1};
}
inline GemmOperand transposed(const float* data, std::ptrdiff_t stride) {
  return {data, 1, stride};
}

// c = a b, or c += a b: a [m, k], b [k, n], c [m, n] with c_stride values from row to row. The instructions
// are the best that this processor has. Each element's sum runs over k in an order that depends on k alone: a
// row of c has the same bits whatever other rows and columns are computed with it.
void gemm(int m, int n, int k, const GemmOperand& a, const GemmOperand& b, bool accumulate, float* c,
          std::ptrdiff_t c_stride);

// What the numbers that are multiplied are rounded to. Sums are F32 in any case.
enum class GemmPrecision : std::uint8_t { f32, bf16 };
// bf16 where this processor multiplies such numbers, which is twice as fast; else f32.
GemmPrecision fastest_gemm_precision();

// A matrix b [k, n] as gemm() reads it, for many products: packing is up to a fifth of one with 128 rows.
class PackedMatrix {
 public:
  // Room for all of it, to be filled part by part, in any order or by several threads. bf16: only where that
  // is fastest_gemm_precision().
  void resize(int k, int n, GemmPrecision precision = GemmPrecision::f32);
  int n_parts() const;
  void pack(const GemmOperand& b, int part);

  int rows() const { return k_; }
  int columns() const { return n_; }

 private:
  friend void gemm(int m, int n, const GemmOperand& a, const PackedMatrix& b, bool accumulate, float* c,
                   std::ptrdiff_t c_stride);
  int n_pairs() const { return (k_ + 1) / 2; }
  std::ptrdiff_t pairs_at(int part) const { return static_cast<std::ptrdiff_t>(part) * n_pairs() * panel_; }
  void multiply_rounded(int m, int n, const GemmOperand& a, bool accumulate, float* c,
                        std::ptrdiff_t c_stride) const;

  int k_ = 0, n_ = 0, panel_ = 1;     // panel_: columns of a panel
  std::vector<float> panels_;         // f32: [n_parts, k, panel_]
  std::vector<std::uint32_t> pairs_;  // bf16: [n_parts, (k + 1) / 2, panel_]
};

// The same product with b's first n columns: bit for bit with an f32 matrix. One in bf16 rounds a, too, whose
// columns then follow one another.
void gemm(int m, int n, const GemmOperand& a, const PackedMatrix& b, bool accumulate, float* c,
          std::ptrdiff_t c_stride);

}  // namespace kvant
