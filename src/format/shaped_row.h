// Rows of values on uniform grids (affine_row.h) whose errors are shaped by an ErrorMetric: rounded value by
// value to the nearest point to the target that the errors before it leave (LDLQ; error_metric.h).
#pragma once

#include <cstddef>

#include "format/error_metric.h"

namespace kvant {

// As encode_affine_row, with `step` whose reciprocals these are: codes[i] is the nearest to target i, clamped
// to lowest .. 2^bits - 1; what a clamped code misses is an error like others. n: the metric's, a multiple
// of 8.
void encode_shaped_row(const float* values, int n, int bits, int lowest, const float* step,
                       const float* reciprocal, const float* offset, const ErrorMetric& metric,
                       std::byte* packed);

}  // namespace kvant
