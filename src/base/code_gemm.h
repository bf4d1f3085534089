// Multiplies F32 rows with a matrix of small codes in blocks, as in quantized weights. A row of the matrix
// has blocks of kCodeBlockSize values, where a value is scale * code + offset and a code has one byte. The
// F32 rows are rounded to 16 bits, block by block, and the products of integers are exact. Each call uses one
// thread; teams make calls in parallel.
#pragma once

#include <cstdint>
#include <vector>

#include "base/code_gemm_kernel.h"

namespace kvant {

// Holds kCodePanel rows of the matrix, k values each.
struct CodePanel {
  std::vector<std::uint8_t> bytes;   // [k / 4][kCodePanel][4]
  std::vector<float> scale, offset;  // [k / kCodeBlockSize][kCodePanel]
  CodePanelView view() const { return {bytes.data(), scale.data(), offset.data()}; }
};

// Holds F32 rows of k values as 16-bit integers.
struct NumberRows {
  // `quads` [rows][k / 4][2] holds the high bytes of four numbers, then their low bytes. Both bytes are
  // signed.
  std::vector<std::uint32_t> quads;
  // `unit` [rows][k / kCodeBlockSize] holds the value of one unit of each block: value = number * unit.
  std::vector<float> unit;
  // `sum` [rows][k / kCodeBlockSize] holds the sum of each block's numbers times `unit`. The offsets of the
  // matrix multiply this sum. Rounding errors are then proportional to the matrix's values, not to its
  // offsets.
  std::vector<float> sum;
  NumberRowsView view() { return {quads.data(), unit.data(), sum.data()}; }
};

// Both overloads of make_room() enlarge the buffers to k values per row (and to n rows) and keep the existing
// contents.
void make_room(CodePanel& panel, int k);
void make_room(NumberRows& rows, int n, int k);

// Returns the products for this processor. Null means that the processor or this build lacks the
// instructions, so products of codes would not be faster than F32.
const CodeGemm* code_gemm();

}  // namespace kvant
