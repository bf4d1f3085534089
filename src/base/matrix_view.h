// MatrixView refers to rows of numbers that another object owns. Transforms and attention pass keys, values
// and queries as views, so rows need no copies.
#pragma once

#include <cstddef>

namespace kvant {

// The shape is [rows, cols]; row r starts at data + r * stride. Strides count elements, not bytes.
template <class T>
struct MatrixView {
  T* data = nullptr;
  int rows = 0;
  int cols = 0;
  std::ptrdiff_t stride = 0;

  MatrixView() = default;
  MatrixView(T* first, int n_rows, int n_cols) : MatrixView(first, n_rows, n_cols, n_cols) {}
  MatrixView(T* first, int n_rows, int n_cols, std::ptrdiff_t row_stride)
      : data(first), rows(n_rows), cols(n_cols), stride(row_stride) {}

  T* row(int r) const { return data + r * stride; }
  MatrixView slice(int first_row, int n_rows) const { return {row(first_row), n_rows, cols, stride}; }
  operator MatrixView<const T>() const { return {data, rows, cols, stride}; }  // NOLINT: implicit on purpose
};

}  // namespace kvant
