// Computes the softmax of KVLinC's feature maps with a warp. The kernels for queries and for key errors share
// softmax_of_warp().
#pragma once

#include "device/cuda/correction/correction.h"

namespace kvant::cuda {

// Computes the softmax of kHalfFeatures numbers in place. Each lane of the warp has four of the numbers.
__device__ __forceinline__ void softmax_of_warp(float (&x)[kHalfFeatures / kLanes]) {
  float top = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
  for (int step = 1; step < kLanes; step *= 2) top = fmaxf(top, __shfl_xor_sync(~0U, top, step));
  float sum = 0;
  for (float& y : x) sum += y = __expf(y - top);
  for (int step = 1; step < kLanes; step *= 2) sum += __shfl_xor_sync(~0U, sum, step);
  for (float& y : x) y /= sum;
}

}  // namespace kvant::cuda
