// Converts between F32 and the two 16-bit floating-point types, for single values and rows. Pages, weights
// and parameters of formats are stored in these types.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace kvant {

// Converts `x` to bfloat16, which is the upper half of an F32, rounded to nearest even. NaN stays NaN.
inline std::uint16_t bf16_from_float(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1)) >> 16);
}
inline float float_from_bf16(std::uint16_t x) {
  return std::bit_cast<float>(std::uint32_t{x} << 16);
}

// Converts `x` to IEEE binary16, rounded to nearest even, with denormals. Values beyond the range become
// infinite.
std::uint16_t f16_from_float(float x);
float float_from_f16(std::uint16_t x);

inline constexpr float kF16Max = 65504.0F;
// Works like f16_from_float, but finite values beyond the range become +-65504. Scales and offsets are stored
// this way.
std::uint16_t f16_from_float_saturated(float x);

// bf16_row_from_float() and the other row functions convert rows of n values.
void bf16_row_from_float(const float* in, std::uint16_t* out, std::size_t n);
void float_row_from_bf16(const std::uint16_t* in, float* out, std::size_t n);
void f16_row_from_float(const float* in, std::uint16_t* out, std::size_t n);
void float_row_from_f16(const std::uint16_t* in, float* out, std::size_t n);
// Converts n values at any address, because pages need not be aligned.
void float_row_from_f16(const std::byte* in, float* out, std::size_t n);

}  // namespace kvant
