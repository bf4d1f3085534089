// Rounds rows of values to INT8, the first stage of TurboAttention. TurboAttention's quantized pages
// (prog.cc) and its tail (int8.cc) share this code.
#pragma once

namespace kvant {

// kLargestInteger is the largest magnitude of the integers (TurboAttention, Algorithm 1). 119 rather than 127
// leaves room for the rounding of prog's second stage.
inline constexpr float kLargestInteger = 119;

// Computes integers[i] = clamp(round(values[i] * reciprocal), -119, 119), with halves rounded up. The
// integers are stored as floats.
void to_integer_row(const float* values, int n, float reciprocal, float* integers);

}  // namespace kvant
