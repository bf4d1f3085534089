// Defines trellis-coded quantization (Marcellin and Fischer 1990) on a bit-shift trellis (QTIP; Tseng et al.
// 2024), which the format tcq uses. A row has B bits per value, and the last 8 bits of the stream up to a
// value select the value's level. Neighbours therefore share bits, and each value chooses among 2^B of 256
// levels. At 2 to 4 bits, the best path through all values leaves .61 to .66 of the squared error of the best
// scalar quantizer at the same bits.
//
// The stream of a row of n values is circular and little-endian (bit_packing.h). The state of value i is the
// 8 bits that end at bit (i + 1) * B. Bits before bit 0 come from the row's end ("tail-biting").
//
// Levels are computed from states (trellis_code.h). QTIP also computes its levels, but by multiplications.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "format/trellis_code.h"

namespace kvant {

// kLeastTrellisRow is the least number of values in a row. The search works in steps of eight and begins 12
// values before the row's end.
inline constexpr int kLeastTrellisRow = 16;

struct TrellisTable : TrellisCode {
  std::array<std::int8_t, kTrellisStates> levels;  // one level per state
};

// Returns the tables for 1 to kMaxTrellisBits bits, in this order.
std::span<const TrellisTable> trellis_tables();

// Holds level * scale for every state.
using TrellisLevels = std::array<float, kTrellisStates>;
TrellisLevels trellis_levels(const TrellisTable& table);

// Decodes a row, where shape[i] becomes the level of value i. `packed` holds `bits` bits per value. n is a
// multiple of 8 and lies in kLeastTrellisRow .. kMaxHeadDim.
void decode_trellis(const std::byte* packed, int n, int bits, const TrellisLevels& levels, float* shape);

}  // namespace kvant
