#include "compact/trellis_page.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/float16.h"
#include "format/bit_packing.h"

namespace kvant {
namespace {

constexpr int kGainSteps = 32;  // gain codes per octave
constexpr int kSilent = 255;    // The gain code of a zero row.
constexpr std::int32_t kLargestGain = 1 << 30, kLargestLevel = 1 << 22;

constexpr std::uint64_t root(std::uint64_t square) {  // The root is rounded down.
  std::uint64_t low = 0, high = std::uint64_t{1} << 32;
  while (high - low > 1) {
    const std::uint64_t middle = (low + high) / 2;
    (middle <= square / middle ? low : high) = middle;
  }
  return low;
}

// Computes 2^(-i / 32) in 1 / 2^30.
constexpr std::array<std::int32_t, kGainSteps> fractions_of_octaves() {
  std::array<std::int32_t, kGainSteps> table{};
  for (int i = 0; i < kGainSteps; ++i) {
    std::uint64_t product = 1U << 30, factor = 1U << 29;  // 2^-1
    for (int bit = kGainSteps / 2; bit > 0; bit /= 2) {
      factor = root(factor << 30);  // 2^-1/2, 2^-1/4, ...
      if ((i & bit) != 0) product = product * factor >> 30;
    }
    table[i] = static_cast<std::int32_t>(product);
  }
  return table;
}
constexpr auto kFractions = fractions_of_octaves();

// Truncates and clamps the value. NaN gives 0.
std::int32_t clamped(double value, std::int32_t largest) {
  if (!(value >= -largest)) return value < 0 ? -largest : 0;
  return value > largest ? largest : static_cast<std::int32_t>(value);
}

}  // namespace

int trellis_bits(const Format& format, int d) {
  const auto scheme = format.code_scheme(d);
  if (!scheme || scheme->meaning != CodeMeaning::state) return 0;
  const TrellisShape shape{scheme->bits, d};
  return format.page_bytes(d) == shape.page_bytes() ? shape.bits : 0;
}

TrellisParameters read_parameters(const TrellisShape& shape, const std::byte* page) {
  TrellisParameters parameters;
  const std::byte* at = page + shape.code_bytes();
  std::memcpy(parameters.gains.data(), at, kPageTokens);
  std::memcpy(parameters.means.data(), at + kTrellisMeansAt, static_cast<std::size_t>(shape.d));
  std::memcpy(&parameters.loudest, at + trellis_loudest_at(shape.d), sizeof parameters.loudest);
  std::memcpy(&parameters.step, at + trellis_step_at(shape.d), sizeof parameters.step);
  return parameters;
}

void write_parameters(const TrellisShape& shape, const TrellisParameters& parameters, std::byte* page) {
  std::byte* at = page + shape.code_bytes();
  std::memcpy(at, parameters.gains.data(), kPageTokens);
  std::memcpy(at + kTrellisMeansAt, parameters.means.data(), static_cast<std::size_t>(shape.d));
  std::memcpy(at + trellis_loudest_at(shape.d), &parameters.loudest, sizeof parameters.loudest);
  std::memcpy(at + trellis_step_at(shape.d), &parameters.step, sizeof parameters.step);
}

GainUnits gain_units(int bits, std::uint32_t loudest, int exponent) {
  const double unit = std::ldexp(static_cast<double>(std::bit_cast<float>(loudest)), exponent);
  const double level = std::ldexp(unit, kGainBits) * static_cast<double>(trellis_tables()[bits - 1].scale);
  GainUnits gains{};
  for (int code = 0; code < kSilent; ++code) {
    const double fraction = std::ldexp(kFractions[code % kGainSteps], -30 - code / kGainSteps);
    gains.units[code] = std::max(0, clamped(unit * fraction, kLargestGain));
    gains.levels[code] = std::max(0, clamped(level * fraction, kLargestLevel));
  }
  return gains;
}

std::int32_t units_of_mean(int steps, std::uint16_t step, int exponent) {
  const double mean = static_cast<double>(steps) * static_cast<double>(float_from_bf16(step));
  return clamped(std::ldexp(mean, exponent), kLargestUnits);
}

int mean_of_units(std::int32_t units, std::uint16_t step, int exponent) {
  const double unit = std::ldexp(static_cast<double>(float_from_bf16(step)), exponent);
  if (!(unit > 0)) return 0;
  const std::int32_t twice = clamped(2.0 * static_cast<double>(units) / unit, 2 * kLargestMeanCode);
  return (twice + (twice < 0 ? -1 : 1)) / 2;
}

int bits_before(int bits, int d, const std::uint16_t* symbols) {
  const int wanted = kTrellisBits - bits, n = (wanted + bits - 1) / bits;
  int last = 0;
  for (int i = 0; i < n; ++i) last |= symbols[d - n + i] << (i * bits);
  return last >> (n * bits - wanted);
}

void page_units(const TrellisShape& shape, const TrellisParameters& parameters, const GainUnits& gains,
                const std::int32_t* means, const std::byte* page, std::int32_t* values) {
  const TrellisTable& table = trellis_tables()[shape.bits - 1];
  std::array<std::uint16_t, kMaxHeadDim> symbols;
  for (int t = 0; t < kPageTokens; ++t) {
    unpack_codes(page + static_cast<std::ptrdiff_t>(t) * shape.row_bytes(), shape.d, shape.bits,
                 symbols.data());
    int older = bits_before(shape.bits, shape.d, symbols.data());
    const std::int32_t level = gains.levels[parameters.gains[t]];
    std::int32_t* row = values + static_cast<std::ptrdiff_t>(t) * shape.d;
    for (int i = 0; i < shape.d; ++i) {
      const int state = symbols[i] << (kTrellisBits - shape.bits) | older;
      older = state >> shape.bits;
      row[i] = means[i] + (table.levels[state] * level >> kGainBits);
    }
  }
}

}  // namespace kvant
