// Rows of values as INT8: the first stage of TurboAttention, shared by its quantized pages (prog) and its
// tail (int8).
#pragma once

namespace kvant {

// The largest magnitude of the integers (TurboAttention, Algorithm 1): 119 rather than 127 leaves room for
// the second stage's rounding.
inline constexpr float kLargestInteger = 119;

// Computes integers[i] = clamp(round(values[i] * reciprocal), -119, 119), halves rounded up, as whole floats.
void to_integer_row(const float* values, int n, float reciprocal, float* integers);

}  // namespace kvant
