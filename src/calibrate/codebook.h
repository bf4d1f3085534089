// Learns codebooks for vector-quantizing formats. Every (layer, KV head, side) has a codebook of its own,
// which k-means finds on captured values.
#pragma once

#include <cstdint>
#include <vector>

#include "base/matrix_view.h"
#include "format/format.h"

namespace kvant {

struct Codebook {
  std::vector<float> centroids;  // CodebookShape describes the layout
  // The three errors are mean squared errors, relative to the mean square of the values. Formats with gains
  // take unit vectors as values. The errors belong to the initial centroids of k-means, to its final
  // centroids, and to the final centroids in INT8.
  double error_before = 0;
  double error_after = 0;
  double error_int8 = 0;
};

// Runs k-means on the sub-vectors of values [n, d], n > 0. The result is deterministic for a seed.
Codebook learn_codebook(const CodebookShape& shape, MatrixView<const float> values, std::uint64_t seed);

// Returns the scale with which an array is stored as INT8. The largest magnitude becomes 127, and the scale
// is rounded up to 16 significant bits. Every product of the scale and an integer is therefore an exact F32
// number, and int8_scale() of the rounded values is the same. Returns 1 if all values are 0.
float int8_scale(const std::vector<float>& values);
// Rounds each value to the nearest product of int8_scale() and an integer in -127 .. 127.
std::vector<float> rounded_to_int8(std::vector<float> values);
// Rounds each value to the nearest f16. Values beyond the range become the largest f16.
std::vector<float> rounded_to_f16(std::vector<float> values);

}  // namespace kvant
