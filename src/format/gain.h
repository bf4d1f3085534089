// Computes the gains of gain-shape quantization, which the formats lm and nvq use. A token x is stored as an
// f16 gain times a shape c, the quantized unit vector x / |x|.
#pragma once

#include <cstdint>

namespace kvant {

// GainRule is the rule that chooses the gain once the shape is known.
enum class GainRule {
  least_squares,  // <x, c> / <c, c> minimizes |x - gain c|, but gain c is shorter than x on average.
  unbiased,       // <x, x> / <x, c> makes <gain c, x> = <x, x>, so scores keep their size on average.
  length,         // |x| / |c| makes gain c as long as x.
};

// Returns |x| of x [n], computed in double because squares of F32 values may overflow. n is a multiple of 8.
double norm(const float* x, int n);

// Returns the gain as f16, saturated at 65504. The gain is 0 if x or the shape is zero, or if their product
// is negative. Gains below 2^-25 underflow to 0. n is a multiple of 8.
std::uint16_t fit_gain(const float* x, const float* shape, int n, GainRule rule);

}  // namespace kvant
