// Reads parameters of a trellis-coded page of D channels, which follow its codes
// (src/format/trellis_parameters.h).
#pragma once

#include <cuda_bf16.h>

#include "format/trellis_parameters.h"

namespace kvant::cuda {

template <int D>
__device__ __forceinline__ float loudest_gain(const unsigned char* parameters) {
  return *reinterpret_cast<const float*>(parameters + trellis_loudest_at(D));
}

// Returns the step of the means, which are multiples of it.
template <int D>
__device__ __forceinline__ float mean_step(const unsigned char* parameters) {
  return __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(parameters + trellis_step_at(D)));
}

}  // namespace kvant::cuda
