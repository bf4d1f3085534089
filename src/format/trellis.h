// Trellis-coded quantization (Marcellin and Fischer 1990) on a bit-shift trellis (QTIP; Tseng et al. 2024): a
// row is B bits a value, and the level of a value is looked up by the last 8 bits of the stream up to it. So
// neighbours share bits, each value chooses among 2^B of 256 levels, and the best path through all of them
// leaves 2/3 of the squared error of the best scalar quantizer at the same bits.
//
// The stream of a row of n values is circular and little-endian (bit_packing.h): the state of value i is the
// 8 bits that end at bit (i + 1) * B, those before bit 0 taken from the row's end ("tail-biting").
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvant {

inline constexpr int kTrellisBits = 8;  // of a state
inline constexpr int kTrellisStates = 1 << kTrellisBits;
inline constexpr int kMostTrellisBits = 6;  // B

// value = level[state] * scale, for values of mean 0 and variance 1.
struct TrellisTable {
  int bits;     // B
  float scale;  // of the levels
  std::array<std::int8_t, kTrellisStates> levels;
};

// For B = 1 to 6 in order, trained on rows of Gaussian values by Lloyd's iteration
// (scripts/trellis-tables.py).
std::span<const TrellisTable> trellis_tables();

// level * scale of every state.
using TrellisLevels = std::array<float, kTrellisStates>;
TrellisLevels trellis_levels(const TrellisTable& table);

// shape[i]: the level of value i of the row of `bits` bits a value whose packed symbols are at `packed`; n as
// above.
void decode_trellis(const std::byte* packed, int n, int bits, const TrellisLevels& levels, float* shape);

}  // namespace kvant
