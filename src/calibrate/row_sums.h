// Sums over rows of F32 values in double precision. The order of the sum depends only on the number of
// values.
#pragma once

namespace kvant {

// Returns the sum of a_i b_i for i in [0, n).
double dot_row(const float* a, const float* b, int n);
// Returns the sum of (a_i - b_i) c_i for i in [0, n).
double difference_dot_row(const float* a, const float* b, const float* c, int n);

}  // namespace kvant
