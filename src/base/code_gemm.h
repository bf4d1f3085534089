// Products of F32 rows with a matrix of small codes in blocks, as quantized weights are: value = scale * code
// + offset, codes of a byte, kCodeBlockSize values of a row to a block. The rows are rounded to 16 bits,
// block by block, and the products of integers are exact. For one thread: teams call it side by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvant {

inline constexpr int kCodeBlockSize = 32;  // values
inline constexpr int kCodePanel = 64;      // rows of the matrix, which are multiplied at once

// kCodePanel rows of the matrix, k values each.
struct CodePanel {
  std::vector<std::uint8_t> bytes;   // [k / 4][kCodePanel][4]
  std::vector<float> scale, offset;  // [k / kCodeBlockSize][kCodePanel]
};

// Rows of k values as integers of 16 bits.
struct NumberRows {
  std::vector<std::uint32_t>
      quads;                // [rows][k / 4][2]: the numbers' high bytes and their low ones, both signed
  std::vector<float> unit;  // [rows][k / kCodeBlockSize]: value = number * unit
  // Likewise: the sum of the block's numbers, times unit. Rounding then errs in proportion to the matrix's
  // values, not to its offsets.
  std::vector<float> sum;
};

// Make room for so much; what is there already stays.
void make_room(CodePanel& panel, int k);
void make_room(NumberRows& rows, int n, int k);

// The products for this processor; null: it has no instructions for them, and F32 is as fast.
struct CodeGemm {
  // rows[r] = row r of x for r in [first, end); x: k values a row, `stride` from row to row.
  void (*round_rows)(const float* x, std::ptrdiff_t stride, int first, int end, int k, NumberRows& rows);
  // y[r][i] = rows[r] . row i of the panel for r in [first, end) and the first n_columns of it.
  void (*multiply)(const NumberRows& rows, int first, int end, int k, const CodePanel& panel, int n_columns,
                   float* y, std::ptrdiff_t y_stride);
};
const CodeGemm* code_gemm();

const CodeGemm* code_gemm_avx512();  // null: not of this build

}  // namespace kvant
