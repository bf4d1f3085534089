// SAS is TurboAttention's approximation of the exponential in softmax (section 4, Algorithm 3). SAS uses a
// table for the whole part of the exponent and a cubic polynomial for the fraction.
#pragma once

namespace kvant {

// Below this score relative to the maximum, SAS gives zero.
inline constexpr float kSasFloor = -6.0F;

// The polynomial with these coefficients of f^0 to f^3 approximates exp(-f) for f in [0, 1) (TurboAttention,
// Algorithm 3).
inline constexpr float kSasPolynomial[4] = {0.9996F, -0.9922F, 0.4626F, -0.1025F};

// Returns exp(x) for x <= 0 in SAS's approximation. The relative error is below 1.04e-3 above kSasFloor, and
// the result below kSasFloor is 0.
float sas_exp(float x);

// Computes what exp_row() computes, but with sas_exp().
float sas_row(float* x, int n, float max);

}  // namespace kvant
