// RowRun: rows of a step that attend together.
#pragma once

namespace kvant {

// Rows one after another: all of some slices, or some of one.
struct RowRun {
  int first_slice = 0, n_slices = 0;
  int first_row = 0, n_rows = 0;  // of the step

  bool one_each() const { return n_rows == n_slices; }
};

}  // namespace kvant
