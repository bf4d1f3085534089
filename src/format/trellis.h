// Trellis-coded quantization (Marcellin and Fischer 1990) on a bit-shift trellis (QTIP; Tseng et al. 2024): a
// row is B bits a value, and the level of a value is looked up by the last 8 bits of the stream up to it. So
// neighbours share bits, each value chooses among 2^B of 256 levels, and the best path through all of them
// leaves 2/3 of the squared error of the best scalar quantizer at the same bits.
//
// The stream of a row of n values is circular and little-endian (bit_packing.h): the state of value i is the
// 8 bits that end at bit (i + 1) * B, those before bit 0 taken from the row's end ("tail-biting").
//
// Levels are computed from states (trellis_code.h): QTIP computes its levels as well, by multiplications.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "format/trellis_code.h"

namespace kvant {

// Values that a row has at least: a path is searched in steps of eight, and begins before its end.
inline constexpr int kLeastTrellisRow = 16;

struct TrellisTable : TrellisCode {
  std::array<std::int8_t, kTrellisStates> levels;  // of all states
};

// Of kTrellisCodes.
std::span<const TrellisTable> trellis_tables();

// level * scale of every state.
using TrellisLevels = std::array<float, kTrellisStates>;
TrellisLevels trellis_levels(const TrellisTable& table);

// shape[i]: the level of value i of the row of `bits` bits a value whose packed symbols are at `packed`; n as
// above.
void decode_trellis(const std::byte* packed, int n, int bits, const TrellisLevels& levels, float* shape);

}  // namespace kvant
