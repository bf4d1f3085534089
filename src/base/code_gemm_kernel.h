// Declares the inner loops of code_gemm() and their data. This header uses no inline functions of the
// standard library. Files for newer processors include the header, and the linker could take their copies of
// such functions for code that runs everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvant {

inline constexpr int kCodeBlockSize = 32;  // values in a block
inline constexpr int kCodePanel = 64;      // rows of the matrix that are multiplied at once

// CodePanelView and NumberRowsView are views of a CodePanel and of NumberRows (code_gemm.h).
struct CodePanelView {
  const std::uint8_t* bytes;
  const float *scale, *offset;
};
struct NumberRowsView {
  std::uint32_t* quads;
  float *unit, *sum;
};

// Holds the inner loops for one processor.
struct CodeGemm {
  // Rounds row r of x to rows[r] for r in [first, end). x has k values per row, and rows are `stride` values
  // apart. If a value is not finite, all products of its row will be NaN.
  void (*round_rows)(const float* x, std::ptrdiff_t stride, int first, int end, int k,
                     const NumberRowsView& rows);
  // Computes y[r][i] = rows[r] . row i of the panel, for r in [first, end) and the first n_columns rows of
  // the panel. Rows of y lie y_stride values apart.
  void (*multiply)(const NumberRowsView& rows, int first, int end, int k, const CodePanelView& panel,
                   int n_columns, float* y, std::ptrdiff_t y_stride);
};

const CodeGemm* code_gemm_avx512();  // null if this build does not contain the loops

}  // namespace kvant
