// Computes exponentials, maxima and sums of rows for attention.
#pragma once

namespace kvant {

// Sets x_i to exp(x_i - max) for i in [0, n), and returns the sum of the new values. Requires x_i <= max. For
// x_i = -inf the new value is 0. The relative error is below 2e-7.
float exp_row(float* x, int n, float max);

// Returns the largest of n > 0 values.
float max_row(const float* x, int n);

// scale_row() sets y_i to y_i * factor. add_scaled_row() sets y_i to y_i + x_i * factor.
void scale_row(float* y, int n, float factor);
void add_scaled_row(float* y, const float* x, int n, float factor);

}  // namespace kvant
