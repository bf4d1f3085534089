// Gain-shape quantization: a token x is stored as an f16 gain times a shape c, the quantized unit vector x /
// |x|.
#pragma once

#include <cstdint>

namespace kvant {

// The rule that chooses the gain once the shape is known.
enum class GainRule {
  least_squares,  // <x, c> / <c, c> minimizes |x - gain c|; on average the result is shorter than x
  unbiased,       // <x, x> / <x, c> gives <gain c, x> = <x, x>, so scores don't shrink on average
};

// Returns |x|, computed in double because squares of F32 values may overflow. n is a multiple of 8.
double norm(const float* x, int n);

// Returns the gain as f16, saturated at 65504. It is 0 when x or the shape is zero or their product is
// negative, and underflows to 0 below 2^-25. n is a multiple of 8.
std::uint16_t fit_gain(const float* x, const float* shape, int n, GainRule rule);

}  // namespace kvant
