// A page of tcq<B> (format/tcq.cc) as numbers: its symbols, and what they stand for in fixed point.
//
// Fixed point: one unit is 2^-exponent of a value ("a unit"); levels are scaled to 1 / 2^kGainBits units.
// All of it is integers, and products of doubles that are cut off: every processor and compiler finds the
// same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/page_size.h"
#include "format/format.h"
#include "format/trellis.h"
#include "format/trellis_parameters.h"

namespace kvant {

inline constexpr int kGainBits = 8;
inline constexpr std::int32_t kLargestUnits = 1 << 21;
inline constexpr int kGainCodes = 256;

struct TrellisShape {
  int bits = 0;  // B; 0: not such a page
  int d = 0;
  int row_bytes() const { return d * bits / 8; }
  int code_bytes() const { return kPageTokens * row_bytes(); }
  std::size_t page_bytes() const { return trellis_page_bytes(bits, d); }
};

// B of a format, or 0: it is none of these.
int trellis_bits(const Format& format, int d);

// What lies behind the codes.
struct TrellisParameters {
  std::array<std::uint8_t, kPageTokens> gains;
  std::array<std::int8_t, kMaxHeadDim> means;  // [d], in steps
  std::uint32_t loudest = 0;                   // the bits of an F32
  std::uint16_t step = 0;                      // those of a bf16
};
TrellisParameters read_parameters(const TrellisShape& shape, const std::byte* page);
void write_parameters(const TrellisShape& shape, const TrellisParameters& parameters, std::byte* page);

// A gain in units, of the code 0 and of others; at least 0.
struct GainUnits {
  std::array<std::int32_t, kGainCodes> units;   // by code: of a level that is 1
  std::array<std::int32_t, kGainCodes> levels;  // by code: of one step of the levels, in 1 / 2^kGainBits
};
GainUnits gain_units(int bits, std::uint32_t loudest, int exponent);

// A mean of so many steps in units, and the steps that are nearest to so many units.
std::int32_t units_of_mean(int steps, std::uint16_t step, int exponent);
int mean_of_units(std::int32_t units, std::uint16_t step, int exponent);

// The 8 - B bits before the first symbol of a row: its last ones.
int bits_before(int bits, int d, const std::uint16_t* symbols);

// values [kPageTokens, d] in units. means in units, [d].
void page_units(const TrellisShape& shape, const TrellisParameters& parameters, const GainUnits& gains,
                const std::int32_t* means, const std::byte* page, std::int32_t* values);

}  // namespace kvant
