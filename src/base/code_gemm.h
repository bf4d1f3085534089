// Products of F32 rows with a matrix of small codes in blocks, as quantized weights are: value = scale * code
// + offset, codes of a byte, kCodeBlockSize values of a row to a block. The rows are rounded to 16 bits,
// block by block, and the products of integers are exact. For one thread: teams call it side by side.
#pragma once

#include <cstdint>
#include <vector>

#include "base/code_gemm_kernel.h"

namespace kvant {

// kCodePanel rows of the matrix, k values each.
struct CodePanel {
  std::vector<std::uint8_t> bytes;   // [k / 4][kCodePanel][4]
  std::vector<float> scale, offset;  // [k / kCodeBlockSize][kCodePanel]
  CodePanelView view() const { return {bytes.data(), scale.data(), offset.data()}; }
};

// Rows of k values as integers of 16 bits.
struct NumberRows {
  // [rows][k / 4][2]: the numbers' high bytes and their low ones, both signed.
  std::vector<std::uint32_t> quads;
  // [rows][k / kCodeBlockSize]: value = number * unit.
  std::vector<float> unit;
  // Likewise: the sum of the block's numbers, times unit. Rounding then errs in proportion to the matrix's
  // values, not to its offsets.
  std::vector<float> sum;
  NumberRowsView view() { return {quads.data(), unit.data(), sum.data()}; }
};

// Make room for so much; what is there already stays.
void make_room(CodePanel& panel, int k);
void make_room(NumberRows& rows, int n, int k);

// The products for this processor; null: it has no instructions for them, and F32 is as fast.
const CodeGemm* code_gemm();

}  // namespace kvant
