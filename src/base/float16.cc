#include "base/float16.h"

#include <algorithm>
#include <cstring>

#include "base/simd_clones.h"

namespace kvant {
namespace {

// The code has no branches, so loops over rows vectorize. The addition of a power of two, chosen from the
// exponent, makes the FPU round the mantissa to 10 bits, denormals included.
inline std::uint16_t round_to_f16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const std::uint32_t exponent = magnitude & 0x7f800000U;
  const std::uint32_t floor_exponent = std::max(exponent, 0x38800000U);  // 2^-14, the smallest normal
  const float magic = std::bit_cast<float>(floor_exponent + (13U << 23));
  const float rounded = std::bit_cast<float>(std::min(magnitude, 0x47800000U)) + magic;
  const std::uint32_t mantissa_sum =
      std::bit_cast<std::uint32_t>(rounded) - std::bit_cast<std::uint32_t>(magic);
  const std::uint32_t normal = ((floor_exponent - 0x38800000U) >> 13) + mantissa_sum;
  const std::uint32_t finite = std::min(normal, 0x7c00U);
  const std::uint32_t special = magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U;
  const std::uint32_t mask = 0U - static_cast<std::uint32_t>(magnitude >= 0x47800000U);
  return static_cast<std::uint16_t>(sign | (special & mask) | (finite & ~mask));
}

inline float widen_f16(std::uint16_t x) {
  const std::uint32_t sign = (std::uint32_t{x} & 0x8000U) << 16;
  const std::uint32_t magnitude = std::uint32_t{x} & 0x7fffU;
  // Read as an F32, the bits have an exponent that is 112 too small. The product corrects the exponent and
  // normalizes denormals.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(scaled);
  // Infinities and NaNs have all bits of the exponent set. A branch would keep loops from vectorizing.
  const std::uint32_t special = (0U - static_cast<std::uint32_t>(magnitude >= 0x7c00U)) & 0x7f800000U;
  return std::bit_cast<float>(sign | finite | special);
}

}  // namespace

std::uint16_t f16_from_float(float x) {
  return round_to_f16(x);
}
float float_from_f16(std::uint16_t x) {
  return widen_f16(x);
}
std::uint16_t f16_from_float_saturated(float x) {
  return round_to_f16(std::clamp(x, -kF16Max, kF16Max));
}

KVANT_SIMD_CLONES void bf16_row_from_float(const float* in, std::uint16_t* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = bf16_from_float(in[i]);
}
KVANT_SIMD_CLONES void float_row_from_bf16(const std::uint16_t* in, float* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = float_from_bf16(in[i]);
}
KVANT_SIMD_CLONES void f16_row_from_float(const float* in, std::uint16_t* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = round_to_f16(in[i]);
}
KVANT_SIMD_CLONES void float_row_from_f16(const std::byte* in, float* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    std::uint16_t x;
    std::memcpy(&x, in + sizeof x * i, sizeof x);
    out[i] = widen_f16(x);
  }
}
void float_row_from_f16(const std::uint16_t* in, float* out, std::size_t n) {
  float_row_from_f16(reinterpret_cast<const std::byte*>(in), out, n);
}

}  // namespace kvant
