// Gain-shape quantization: a token x is stored as an f16 gain times a shape c, the quantized unit vector x /
// |x|.
#pragma once

#include <cstdint>

namespace kvant {

// How the gain is chosen once the shape is known.
enum class GainRule {
  least_squares,  // <x, c> / <c, c>: the smallest |x - gain c|; on average shorter than x
  unbiased,       // <x, x> / <x, c>: <gain c, x> = <x, x>, so that scores aren't shrunk on average
};

// |x|, in double so that no finite F32 values overflow. n: a multiple of 8.
double norm(const float* x, int n);

// The gain as f16, saturated at 65504; 0 when x or the shape is zero, or when they point away from each
// other. Underflows to 0 below 2^-25. n: a multiple of 8.
std::uint16_t fit_gain(const float* x, const float* shape, int n, GainRule rule);

}  // namespace kvant
