// The symbols of one row of a trellis page, around what is expected of it.
#pragma once

#include <cstdint>

#include "compact/branch_cells.h"
#include "compact/predictor.h"
#include "compact/symbol_coder.h"

namespace kvant {

inline constexpr int kStepBits = 29;  // so that all distances are within 32 bits of steps

// Of a row of d values.
struct ExpectedRow {
  const std::int32_t* values;  // [d]: in 1 / 2^kGainBits units, without the channels' means
  const std::int32_t* steps;   // [d]: in 1 / 2^kFineBits of a step (branch_cells.h) for each of these; at
                               // most 2^kStepBits
  const std::int16_t* follow;  // [d, d], as of HeadPredictor
  std::int32_t gain;           // of one level, in the units of `values`
};

// Where symbols lie and what they cost: from the bits before the first one on, which come first. bits: B.
// A row's cost in bits, rounded up by a bit or so each.
std::int64_t write_row(const TrellisCells& cells, int bits, int d, const std::uint16_t* symbols,
                       const ExpectedRow& row, std::uint32_t* firsts, std::uint32_t* sizes);
// The magnitude of the surprises, in 1 / kStepsOfDeviation, summed up.
std::int64_t row_surprise(int bits, int d, const std::uint16_t* symbols, const ExpectedRow& row);
// n rows at once, each from a reader of its own: 1, or kRowLanes, which take little longer than one.
// symbols: [n][kMaxHeadDim].
inline constexpr int kRowLanes = 4;
void read_rows(const TrellisCells& cells, int bits, int d, int n, const ExpectedRow* rows, SymbolReader* from,
               std::uint16_t* symbols);

}  // namespace kvant
