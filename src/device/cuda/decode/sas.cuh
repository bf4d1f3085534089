// Computes SAS, TurboAttention's approximation of the softmax exponential (src/base/sas.h). A whole
// power of e multiplies a cubic polynomial of the rest of the exponent. Weights below a floor are zero.
#pragma once

#include "base/sas.h"
#include "device/cuda/decode/leave_segment.cuh"
#include "device/cuda/decode/sas_polynomial.cuh"

namespace kvant::cuda {

// Computes weights of scores relative to a maximum, both in units of log 2. The natural exponent is -(whole +
// 1/2 + g) with g in [-1/2, 1/2]. `whole` comes from rounding, which is cheaper than a floor.
class SasExponential {
 public:
  __device__ __forceinline__ explicit SasExponential(float max) : offset_(fmaf(max, kLn2, -0.5F)) {}

  __device__ __forceinline__ float operator()(float score) const {
    // A sum with this number has no bits for a fraction.
    constexpr float kRounder = 0x1.8p23F;
    const float x = fmaf(score, -kLn2, offset_);
    const float whole = (x + kRounder) - kRounder;
    const float g = x - whole;
    const float polynomial = centred_sas_polynomial(g);
    const float weight = exp2_fast(fmaf(whole, -1 / kLn2, kWeightBits)) * polynomial;
    return x > -kSasFloor - 0.5F ? 0 : weight;
  }

 private:
  static constexpr float kLn2 = 0.69314718F;
  float offset_;
};

}  // namespace kvant::cuda
