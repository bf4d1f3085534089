// SAS, TurboAttention's softmax approximation (TurboAttention section 4, Algorithm 3): a table for the whole
// part of the exponent and a cubic polynomial for the fraction.
#pragma once

namespace kvant {

// Below this score relative to the maximum, SAS gives zero.
inline constexpr float kSasFloor = -6.0F;

// Near exp(-f) for f in [0, 1): the coefficients of f^0 to f^3 (TurboAttention, Algorithm 3).
inline constexpr float kSasPolynomial[4] = {0.9996F, -0.9922F, 0.4626F, -0.1025F};

// exp(x) for x <= 0 as SAS approximates it: relative error below 1.04e-3 above kSasFloor.
float sas_exp(float x);

// As exp_row, with sas_exp.
float sas_row(float* x, int n, float max);

}  // namespace kvant
