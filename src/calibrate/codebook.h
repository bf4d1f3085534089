// Codebooks for the vector-quantizing formats.
#pragma once

#include <cstdint>
#include <vector>

#include "base/matrix_view.h"
#include "format/format.h"

namespace kvant {

struct Codebook {
  std::vector<float> centroids;  // as CodebookShape says
  // Mean squared errors, relative to the mean square of the (unit) values: with the first centroids of
  // k-means, with the last, and with these in INT8.
  double error_before = 0;
  double error_after = 0;
  double error_int8 = 0;
};

// k-means on the sub-vectors of values [n, d], n > 0; deterministic for a seed.
Codebook learn_codebook(const CodebookShape& shape, MatrixView<const float> values, std::uint64_t seed);

// One scale for an array of INT8: largest magnitude / 127, rounded up to 16 significant bits, so that every
// scale * integer is an exact F32 and the scale of the products is the scale again. 1 when all are 0.
float int8_scale(const std::vector<float>& values);
// Each value as the nearest scale * integer, integer in -127 .. 127, with the scale of int8_scale.
std::vector<float> rounded_to_int8(std::vector<float> values);
// Each value as the nearest f16, saturated.
std::vector<float> rounded_to_f16(std::vector<float> values);

}  // namespace kvant
