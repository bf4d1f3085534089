// Computes the polynomial of SAS (src/base/sas.h), shifted by 1/2. Kernels round the whole part of an
// exponent, while the definition truncates it. A kernel's fraction therefore lies in [-1/2, 1/2].
#pragma once

#include "base/sas.h"

namespace kvant::cuda {

// Computes e^-(1/2 + g) for g in [-1/2, 1/2]. The polynomial is kSasPolynomial for the fraction f = g + 1/2.
__device__ __forceinline__ float centred_sas_polynomial(float g) {
  constexpr float kCubic = kSasPolynomial[3];
  constexpr float kSquare = kSasPolynomial[2] + 1.5F * kCubic;
  constexpr float kLinear = kSasPolynomial[1] + kSasPolynomial[2] + 0.75F * kCubic;
  constexpr float kConstant = kSasPolynomial[0] + kSasPolynomial[1] / 2 + kSasPolynomial[2] / 4 + kCubic / 8;
  return fmaf(fmaf(fmaf(kCubic, g, kSquare), g, kLinear), g, kConstant);
}

}  // namespace kvant::cuda
