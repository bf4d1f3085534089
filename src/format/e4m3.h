// e4m3 is an 8-bit float: a sign, 4 bits of exponent (bias 7) and 3 bits of mantissa, without infinities.
// Encoding never produces the NaN codes 0x7f and 0xff. The fp8 formats store such numbers.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace kvant {

inline constexpr float kE4m3Max = 448;

// Rounds |x| <= 448 to the nearest e4m3 number, halves to even. The function adds a large power of two, whose
// unit in the last place is 2^-3 of x's power of two. The addition therefore rounds x.
inline std::uint8_t e4m3_from_float(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 24) & 0x80U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  constexpr std::uint32_t kSmallestNormal = 0x3c800000U;  // the smallest normal number, 2^-6
  const std::uint32_t exponent = std::max(magnitude & 0x7f800000U, kSmallestNormal);
  const float unit = std::bit_cast<float>(exponent + (20U << 23));
  const float rounded = std::bit_cast<float>(magnitude) + unit;
  const std::uint32_t mantissa = std::bit_cast<std::uint32_t>(rounded) - std::bit_cast<std::uint32_t>(unit);
  const std::uint32_t code = ((exponent - kSmallestNormal) >> 20) + mantissa;
  return static_cast<std::uint8_t>(sign | std::min(code, 0x7eU));
}

inline float float_from_e4m3(std::uint8_t code) {
  const std::uint32_t sign = (std::uint32_t{code} & 0x80U) << 24;
  const std::uint32_t magnitude = code & 0x7fU;
  const auto normal = std::bit_cast<float>((magnitude << 20) + (120U << 23));
  const float denormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-9F;
  const float value = magnitude < 8 ? denormal : normal;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
}

}  // namespace kvant
