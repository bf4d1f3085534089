// Codebooks for the vector-quantizing formats.
#pragma once

#include <cstdint>
#include <vector>

#include "base/matrix_view.h"
#include "format/format.h"

namespace kvant {

struct Codebook {
  std::vector<float> centroids;  // layout: see CodebookShape
  // Mean squared errors relative to the mean square of the (unit) values: with the initial centroids of
  // k-means, with the final ones, and with these in INT8.
  double error_before = 0;
  double error_after = 0;
  double error_int8 = 0;
};

// Runs k-means on the sub-vectors of values [n, d], n > 0; deterministic for a seed.
Codebook learn_codebook(const CodebookShape& shape, MatrixView<const float> values, std::uint64_t seed);

// Returns one scale for an array of INT8: largest magnitude / 127, rounded up to 16 significant bits. So
// every scale * integer is an exact F32, and the scale of the rounded values is the same scale. Returns 1 if
// all values are 0.
float int8_scale(const std::vector<float>& values);
// Rounds each value to the nearest scale * integer, integer in -127 .. 127, with the scale of int8_scale.
std::vector<float> rounded_to_int8(std::vector<float> values);
// Rounds each value to the nearest f16, with saturation.
std::vector<float> rounded_to_f16(std::vector<float> values);

}  // namespace kvant
