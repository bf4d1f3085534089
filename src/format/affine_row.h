// Encodes and decodes rows of values on uniform grids: value = offset + code * scale, with one (scale,
// offset) pair per channel. The token-wise (tok) and channel-wise (ch) families share this code, and the
// family hi uses the code for its coded channels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/geometry.h"

namespace kvant {

// Holds the f16 parameters of a group of values that share one grid.
struct AffineGroup {
  std::uint16_t scale = 0;
  std::uint16_t offset = 0;
};

struct Extremes {
  float low, high;
};

// Returns the smallest and the largest of n values. n is a multiple of 8 and at least 8.
Extremes extremes(const float* values, int n);

// Fits the grid of 2^bits points from `low` to `high`: offset = f16(low), scale = f16((high - offset) /
// (2^bits - 1)). The scale is measured from the rounded offset and is never negative. Scale and offset
// saturate at the largest f16.
AffineGroup fit_affine_group(float low, float high, int bits);

// Writes reciprocal[i] = 1 / scale[i]. If scale[i] is 0, reciprocal[i] is 0, so every code of channel i
// becomes 0.
void reciprocal_row(const float* scale, int n, float* reciprocal);

// Computes codes[i] = clamp(round((values[i] - offset[i]) * reciprocal[i]), 0, 2^bits - 1), halves rounded
// up, and packs them into n * bits / 8 bytes. n is a multiple of 8, at most kMaxHeadDim.
void encode_affine_row(const float* values, int n, int bits, const float* reciprocal, const float* offset,
                       std::byte* packed);

// Decodes the output of encode_affine_row(): values[i] = code i * scale[i] + offset[i].
void decode_affine_row(const std::byte* packed, int n, int bits, const float* scale, const float* offset,
                       float* values);

}  // namespace kvant
