// Products of F32 matrices by one thread: teams call it side by side.
#pragma once

#include <cstddef>
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

// A matrix b [k, n] as gemm() reads it, for many products: packing is up to a fifth of one with 128 rows.
class PackedMatrix {
 public:
  // Room for all of it, to be filled part by part, in any order or by several threads.
  void resize(int k, int n);
  int n_parts() const;
  void pack(const GemmOperand& b, int part);

  int rows() const { return k_; }
  int columns() const { return n_; }

 private:
  friend void gemm(int m, int n, const GemmOperand& a, const PackedMatrix& b, bool accumulate, float* c,
                   std::ptrdiff_t c_stride);
  int k_ = 0, n_ = 0;
  std::vector<float> panels_;  // [n_parts, k, columns of a panel]
};

// The same product with b's first n columns, bit for bit.
void gemm(int m, int n, const GemmOperand& a, const PackedMatrix& b, bool accumulate, float* c,
          std::ptrdiff_t c_stride);

}  // namespace kvant
