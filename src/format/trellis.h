// Trellis-coded quantization (Marcellin and Fischer 1990) on a bit-shift trellis (QTIP; Tseng et al. 2024): a
// row is B bits a value, and the level of a value is looked up by the last 8 bits of the stream up to it. So
// neighbours share bits, each value chooses among 2^B of 256 levels, and the best path through all of them
// leaves 2/3 of the squared error of the best scalar quantizer at the same bits.
//
// The stream of a row of n values is circular and little-endian (bit_packing.h): the state of value i is the
// 8 bits that end at bit (i + 1) * B, those before bit 0 taken from the row's end ("tail-biting").
//
// Levels are computed from states by shifts and masks within a byte (state_level), so that vector units
// decode as many values at a time as they have bytes, without a table: QTIP computes its levels as well, by
// multiplications.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvant {

inline constexpr int kTrellisBits = 8;  // of a state
inline constexpr int kTrellisStates = 1 << kTrellisBits;
inline constexpr int kMostTrellisBits = 6;  // B

// How the levels of B bits a value follow from the states. The fold's mask has no bit below its shift.
struct TrellisCode {
  int bits;     // B
  float scale;  // of the levels: value = level * scale, for values of mean 0 and variance 1
  int mix;      // shift by which a state's older (lower) bits are added to its newer ones
  int fold;     // shift of the second number, of which `fold_mask` says where it differs from the first
  std::uint8_t fold_mask;
};

// The mean of two signed bytes with the same lowest bit: the mixed state, and the same with bits of the
// shifted state in some places. The sum of two numbers is nearer to a Gaussian than one. (A state shifted by
// B bits is the state before, where it counts: vector units can often do without the shift.)
constexpr int state_level(const TrellisCode& code, int state) {
  const int mixed = (state ^ state << code.mix) & 0xff;
  const int folded = (state << code.fold & code.fold_mask) | (mixed & ~code.fold_mask & 0xff);
  return (static_cast<std::int8_t>(mixed) + static_cast<std::int8_t>(folded)) / 2;
}

// For B = 1 to 6 in order. Shifts, masks and scales were searched for on rows of Gaussian values
// (scripts/search-trellis.cc).
inline constexpr TrellisCode kTrellisCodes[kMostTrellisBits] = {
    {.bits = 1, .scale = 0.01218F, .mix = 7, .fold = 1, .fold_mask = 0x24},
    {.bits = 2, .scale = 0.02422F, .mix = 6, .fold = 2, .fold_mask = 0xd0},
    {.bits = 3, .scale = 0.02430F, .mix = 6, .fold = 2, .fold_mask = 0xf0},
    {.bits = 4, .scale = 0.02540F, .mix = 7, .fold = 3, .fold_mask = 0xf0},
    {.bits = 5, .scale = 0.02696F, .mix = 7, .fold = 3, .fold_mask = 0xf8},
    {.bits = 6, .scale = 0.03660F, .mix = 7, .fold = 1, .fold_mask = 0xfe},
};

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
