// Sums over rows of F32 values, in double, in an order that depends on the number of values alone.
#pragma once

namespace kvant {

// The sum of a_i b_i, i in [0, n).
double dot_row(const float* a, const float* b, int n);
// The sum of (a_i - b_i) c_i.
double difference_dot_row(const float* a, const float* b, const float* c, int n);

}  // namespace kvant
