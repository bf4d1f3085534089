// Computes the levels of a trellis's states (trellis.h) by shifts and masks within a byte. A vector unit
// therefore decodes as many values at a time as a register has bytes, without a table.
//
// This header uses no inline functions of the standard library; device/cpu/kernels/byte_kernels.h says why.
#pragma once

#include <cstdint>

namespace kvant {

inline constexpr int kTrellisBits = 8;  // bits of a state
inline constexpr int kTrellisStates = 1 << kTrellisBits;
inline constexpr int kMaxTrellisBits = 6;  // largest number of bits per value

// Describes how levels follow from states for B bits per value. The mask of the fold has no bit below the
// fold's shift.
struct TrellisCode {
  int bits;     // B, the bits per value
  float scale;  // value = level * scale, for values of mean 0 and variance 1
  int mix;      // the shift that adds a state's older (lower) bits to its newer bits
  // `fold` is the shift of folded_state(). `fold_mask` selects the bits in which folded_state() differs from
  // mixed_state().
  int fold;
  std::uint8_t fold_mask;
};

// The parameters for B = 1 to 6 were searched for on rows of Gaussian values (lab/search-trellis.cc).
inline constexpr TrellisCode kTrellisCodes[kMaxTrellisBits] = {
    {.bits = 1, .scale = 0.01218F, .mix = 7, .fold = 1, .fold_mask = 0x24},
    {.bits = 2, .scale = 0.02422F, .mix = 6, .fold = 2, .fold_mask = 0xd0},
    {.bits = 3, .scale = 0.02430F, .mix = 6, .fold = 2, .fold_mask = 0xf0},
    {.bits = 4, .scale = 0.02540F, .mix = 7, .fold = 3, .fold_mask = 0xf0},
    {.bits = 5, .scale = 0.02696F, .mix = 7, .fold = 3, .fold_mask = 0xf8},
    {.bits = 6, .scale = 0.03660F, .mix = 7, .fold = 1, .fold_mask = 0xfe},
};

// mixed_state() and folded_state() are linear. The image of a XOR b is the XOR of the images of a and b.
constexpr int mixed_state(const TrellisCode& code, int state) {
  return (state ^ state << code.mix) & 0xff;
}
constexpr int folded_state(const TrellisCode& code, int state) {
  return (state << code.fold & code.fold_mask) | (mixed_state(code, state) & ~code.fold_mask & 0xff);
}

// Returns the mean of two signed bytes with the same lowest bit, mixed_state() and folded_state(). The sum of
// two numbers is closer to Gaussian than one number. Vector units can often do without the fold's shift,
// because a state shifted by B bits equals the previous state in the relevant bits.
constexpr int state_level(const TrellisCode& code, int state) {
  const auto mixed = static_cast<std::int8_t>(mixed_state(code, state));
  const auto folded = static_cast<std::int8_t>(folded_state(code, state));
  return (mixed + folded) / 2;
}

}  // namespace kvant
