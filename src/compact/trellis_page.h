// Represents a page of tcq<B> (format/tcq.cc) as numbers: its symbols and their values in fixed point.
//
// A unit is 2^-exponent, and levels are in 1 / 2^kGainBits units. All values are computed in integers, or in
// products of doubles that are truncated. So every processor and compiler gets equal results.
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
  int bits = 0;  // B, or 0 if the page has no trellis codes
  int d = 0;
  int row_bytes() const { return d * bits / 8; }
  int code_bytes() const { return kPageTokens * row_bytes(); }
  std::size_t page_bytes() const { return trellis_page_bytes(bits, d); }
};

// Returns B of a trellis format, or 0 for other formats.
int trellis_bits(const Format& format, int d);

// Holds the parameters that are stored after the codes.
struct TrellisParameters {
  std::array<std::uint8_t, kPageTokens> gains;
  std::array<std::int8_t, kMaxHeadDim> means;  // [d], in steps
  std::uint32_t loudest = 0;                   // the bits of an F32
  std::uint16_t step = 0;                      // the bits of a bf16
};
TrellisParameters read_parameters(const TrellisShape& shape, const std::byte* page);
void write_parameters(const TrellisShape& shape, const TrellisParameters& parameters, std::byte* page);

// Holds the gains in units, by gain code. No gain is negative.
struct GainUnits {
  std::array<std::int32_t, kGainCodes> units;  // The value of level 1, by gain code.
  // Holds the value of one step of the levels by gain code, in 1 / 2^kGainBits.
  std::array<std::int32_t, kGainCodes> levels;
};
GainUnits gain_units(int bits, std::uint32_t loudest, int exponent);

// Convert a number of steps into units, and units into the nearest number of steps.
std::int32_t units_of_mean(int steps, std::uint16_t step, int exponent);
int mean_of_units(std::int32_t units, std::uint16_t step, int exponent);

// Returns the 8 - B bits before a row's first symbol. The row is circular, so these bits are its last bits.
int bits_before(int bits, int d, const std::uint16_t* symbols);

// Decodes the page to values [kPageTokens, d] in units. `means` is [d], in units.
void page_units(const TrellisShape& shape, const TrellisParameters& parameters, const GainUnits& gains,
                const std::int32_t* means, const std::byte* page, std::int32_t* values);

}  // namespace kvant
