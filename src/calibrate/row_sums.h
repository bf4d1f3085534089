// Sums over rows of F32 values, in double, in an order that depends only on the number of values.
#pragma once

namespace kvant {

// Returns the sum of a_i b_i, i in [0, n).
double dot_row(const float* a, const float* b, int n);
// Returns the sum of (a_i - b_i) c_i.
double difference_dot_row(const float* a, const float* b, const float* c, int n);

}  // namespace kvant
