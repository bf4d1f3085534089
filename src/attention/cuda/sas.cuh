// SAS, TurboAttention's softmax approximation (src/attention/sas.h): whole powers of e, a cubic polynomial
// for what is left of the exponent, and zero below the floor.
#pragma once

#include "attention/cuda/leave_segment.cuh"
#include "attention/sas.h"

namespace kvant::cuda {

// The weight of a score that is `below` the maximum, in units of log 2.
__device__ __forceinline__ float sas_exp2(float below) {
  constexpr float kLn2 = 0.69314718F;
  const float x = below * kLn2;
  const float whole = floorf(x);
  const float f = x - whole;
  const float polynomial = fmaf(fmaf(fmaf(-0.1025F, f, 0.4626F), f, -0.9922F), f, 0.9996F);
  const float weight = exp2_fast(fmaf(whole, -1 / kLn2, kWeightBits)) * polynomial;
  return x > -kSasFloor ? 0 : weight;
}

}  // namespace kvant::cuda
