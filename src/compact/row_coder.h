// Codes the symbols of one row of a trellis page relative to the prediction of the row.
#pragma once

#include <cstdint>

#include "compact/branch_cells.h"
#include "compact/predictor.h"
#include "compact/symbol_coder.h"

namespace kvant {

inline constexpr int kStepBits = 29;  // Steps this small let all distances fit into 32 bits.

// Holds the prediction of a row of d values.
struct ExpectedRow {
  const std::int32_t* values;  // [d]: in 1 / 2^kGainBits units, without the channels' means
  const std::int32_t* steps;  // [d]: in 1 / 2^kFineBits of a step (branch_cells.h) for each unit of `values`;
                              // at most 2^kStepBits
  const std::int16_t* follow;  // [d, d]: as in HeadPredictor
  std::int32_t gain;           // The size of one level, in the units of `values`.
};

// Computes the intervals of a row's symbols, beginning with the bits before the first symbol. `bits` is B.
// Returns the cost of the row in bits, rounded up by about a bit.
std::int64_t write_row(const TrellisCells& cells, int bits, int d, const std::uint16_t* symbols,
                       const ExpectedRow& row, std::uint32_t* firsts, std::uint32_t* sizes);
// Returns the sum of the errors' magnitudes, in 1 / kStepsOfDeviation.
std::int64_t row_surprise(int bits, int d, const std::uint16_t* symbols, const ExpectedRow& row);
// Reads n rows at once, each from its own reader. n is 1 or kRowLanes; kRowLanes rows take little longer than
// one row. symbols is [n][kMaxHeadDim].
inline constexpr int kRowLanes = 4;
void read_rows(const TrellisCells& cells, int bits, int d, int n, const ExpectedRow* rows, SymbolReader* from,
               std::uint16_t* symbols);

}  // namespace kvant
