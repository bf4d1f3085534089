// What the inner loops of code_gemm() work on, without inline functions of the standard library: compiled
// with other flags there, they could be linked into code that runs everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvant {

inline constexpr int kCodeBlockSize = 32;  // values
inline constexpr int kCodePanel = 64;      // rows of the matrix, which are multiplied at once

// The memory of a CodePanel and of NumberRows (code_gemm.h).
struct CodePanelView {
  const std::uint8_t* bytes;
  const float *scale, *offset;
};
struct NumberRowsView {
  std::uint32_t* quads;
  float *unit, *sum;
};

// The products for this processor.
struct CodeGemm {
  // rows[r] = row r of x for r in [first, end); x: k values a row, `stride` from row to row. Where a value is
  // not finite, all products of its row will be NaN.
  void (*round_rows)(const float* x, std::ptrdiff_t stride, int first, int end, int k,
                     const NumberRowsView& rows);
  // y[r][i] = rows[r] . row i of the panel for r in [first, end) and the first n_columns of it.
  void (*multiply)(const NumberRowsView& rows, int first, int end, int k, const CodePanelView& panel,
                   int n_columns, float* y, std::ptrdiff_t y_stride);
};

const CodeGemm* code_gemm_avx512();  // null: not of this build

}  // namespace kvant
