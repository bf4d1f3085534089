// Rows of values on a uniform grid: value = offset + code * scale, with one (scale, offset) a channel. What
// the token-wise (tok) and channel-wise (ch) families have in common.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/geometry.h"

namespace kvant {

// The f16 parameters of a group of values.
struct AffineGroup {
  std::uint16_t scale = 0;
  std::uint16_t offset = 0;
};

struct Extremes {
  float low, high;
};

// The smallest and the largest of n values. n: a multiple of 8, at least 8.
Extremes extremes(const float* values, int n);

// The grid of 2^bits points from `low` to `high`. offset = f16(low), and scale = f16((high - offset) /
// (2^bits - 1)), measured from the rounded offset; both saturate at the largest f16, and the scale is never
// negative.
AffineGroup fit_affine_group(float low, float high, int bits);

// Channel by channel, the reciprocal of scale; 0 where scale is 0, so that every code there becomes 0.
void reciprocal_row(const float* scale, int n, float* reciprocal);

// codes[i] = clamp(round((values[i] - offset[i]) * reciprocal[i]), 0, 2^bits - 1), halves rounded up, packed
// into n * bits / 8 bytes. n: a multiple of 8, at most kMaxHeadDim.
void encode_affine_row(const float* values, int n, int bits, const float* reciprocal, const float* offset,
                       std::byte* packed);

// The inverse: values[i] = code i * scale[i] + offset[i].
void decode_affine_row(const std::byte* packed, int n, int bits, const float* scale, const float* offset,
                       float* values);

}  // namespace kvant
