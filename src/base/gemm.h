// Multiplies F32 matrices for the model and for attention. Each call uses one thread; teams make calls in
// parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvant {

// GemmOperand is a matrix whose element (row, col) lies at data[row * row_stride + col * col_stride]. One of
// the strides is usually 1.
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

// Computes c = a b, or c += a b if `accumulate` is true. The shapes are a [m, k], b [k, n] and c [m, n], and
// rows of c are c_stride values apart. The function uses the best instructions of this processor. Each
// element's sum runs over k in an order that depends on k alone. A row of c therefore has the same bits
// whatever other rows and columns are computed with it.
void gemm(int m, int n, int k, const GemmOperand& a, const GemmOperand& b, bool accumulate, float* c,
          std::ptrdiff_t c_stride);

// GemmPrecision is the type to which factors are rounded. Sums are always F32.
enum class GemmPrecision : std::uint8_t { f32, bf16 };
// Returns bf16 if this processor multiplies bfloat16 numbers, which is twice as fast; otherwise f32.
GemmPrecision fastest_gemm_precision();

// PackedMatrix is a matrix b [k, n] in the layout that gemm() reads, for many products with one matrix.
// Packing takes up to a fifth of the time of a product with 128 rows.
class PackedMatrix {
 public:
  // Allocates all n_parts() parts, which several threads can then pack in any order. bf16 is allowed only if
  // fastest_gemm_precision() returns bf16.
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

  int k_ = 0, n_ = 0, panel_ = 1;     // panel_ is the number of columns of a panel
  std::vector<float> panels_;         // [n_parts, k, panel_] for f32
  std::vector<std::uint32_t> pairs_;  // [n_parts, (k + 1) / 2, panel_] for bf16
};

// Computes the product of a and the first n columns of b. With an f32 matrix, c has the same bits as from the
// gemm() of two GemmOperand. With a bf16 matrix, a is rounded as well, and a's columns must be contiguous.
void gemm(int m, int n, const GemmOperand& a, const PackedMatrix& b, bool accumulate, float* c,
          std::ptrdiff_t c_stride);

}  // namespace kvant
