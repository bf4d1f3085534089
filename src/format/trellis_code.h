// The levels of a trellis's states (trellis.h): computed by shifts and masks within a byte, so that vector
// units decode as many values at a time as they have bytes, without a table.
//
// No inline functions of the standard library: attention/cpu/byte_kernels.h says why.
#pragma once

#include <cstdint>

namespace kvant {

inline constexpr int kTrellisBits = 8;  // of a state
inline constexpr int kTrellisStates = 1 << kTrellisBits;
inline constexpr int kMaxTrellisBits = 6;  // B

// How the levels of B bits a value follow from the states. The fold's mask has no bit below its shift.
struct TrellisCode {
  int bits;     // B
  float scale;  // of the levels: value = level * scale, for values of mean 0 and variance 1
  int mix;      // shift by which a state's older (lower) bits are added to its newer ones
  int fold;     // shift of the second number, of which `fold_mask` says where it differs from the first
  std::uint8_t fold_mask;
};

// For B = 1 to 6 in order: searched for on rows of Gaussian values (scripts/search-trellis.cc).
inline constexpr TrellisCode kTrellisCodes[kMaxTrellisBits] = {
    {.bits = 1, .scale = 0.01218F, .mix = 7, .fold = 1, .fold_mask = 0x24},
    {.bits = 2, .scale = 0.02422F, .mix = 6, .fold = 2, .fold_mask = 0xd0},
    {.bits = 3, .scale = 0.02430F, .mix = 6, .fold = 2, .fold_mask = 0xf0},
    {.bits = 4, .scale = 0.02540F, .mix = 7, .fold = 3, .fold_mask = 0xf0},
    {.bits = 5, .scale = 0.02696F, .mix = 7, .fold = 3, .fold_mask = 0xf8},
    {.bits = 6, .scale = 0.03660F, .mix = 7, .fold = 1, .fold_mask = 0xfe},
};

// Both are linear: the image of a XOR b is the image of a XOR that of b.
constexpr int mixed_state(const TrellisCode& code, int state) {
  return (state ^ state << code.mix) & 0xff;
}
constexpr int folded_state(const TrellisCode& code, int state) {
  return (state << code.fold & code.fold_mask) | (mixed_state(code, state) & ~code.fold_mask & 0xff);
}

// The mean of two signed bytes with the same lowest bit: the mixed state, and the same with bits of the
// shifted state in some places. The sum of two numbers is nearer to a Gaussian than one. (A state shifted by
// B bits is the state before, where it counts: vector units can often do without the shift.)
constexpr int state_level(const TrellisCode& code, int state) {
  const auto mixed = static_cast<std::int8_t>(mixed_state(code, state));
  const auto folded = static_cast<std::int8_t>(folded_state(code, state));
  return (mixed + folded) / 2;
}

}  // namespace kvant
