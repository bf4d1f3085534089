// The exponentials of attention, in rows.
#pragma once

namespace kvant {

// x_i <- exp(x_i - max) for i in [0, n); returns their sum. x_i <= max, or x_i = -inf, which gives 0.
// Relative error below 2e-7.
float exp_row(float* x, int n, float max);

// The largest of n > 0 values.
float max_row(const float* x, int n);

// y_i <- y_i * factor, and y_i <- y_i + x_i * factor.
void scale_row(float* y, int n, float factor);
void add_scaled_row(float* y, const float* x, int n, float factor);

}  // namespace kvant
