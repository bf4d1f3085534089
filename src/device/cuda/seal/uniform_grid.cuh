// Defines uniform grids and their parameters, computed as in src/format/affine_row.h. Intrinsics keep the
// compiler from fusing operations that the formats round separately.
#pragma once

#include "device/cuda/seal/seal_page.cuh"

namespace kvant::cuda {

// UniformGrid is a grid of 2^bits values. The value of a code is zero + code * step.
struct UniformGrid {
  float zero, reciprocal, last;

  __device__ UniformGrid(float step, float zero_point, int bits) {
    zero = zero_point;
    reciprocal = step != 0 ? __fdiv_rn(1, step) : 0;
    last = static_cast<float>((1 << bits) - 1);
  }

  __device__ UniformGrid(float2 zero_and_reciprocal, int bits)
      : zero(zero_and_reciprocal.x), reciprocal(zero_and_reciprocal.y), last((1 << bits) - 1) {}
  __device__ float2 stored() const { return {zero, reciprocal}; }

  __device__ std::uint32_t code(float x) const {
    const float position = __fmul_rn(__fsub_rn(x, zero), reciprocal);
    return static_cast<std::uint32_t>(__fadd_rn(fminf(fmaxf(position, 0), last), 0.5F));
  }
};

// Holds the f16 parameters of a grid of 2^bits values from `low` to `high`.
struct ScaleAndZero {
  __half scale, zero;

  __device__ ScaleAndZero(float low, float high, int bits) {
    zero = half_saturated(low);
    const float range = fmaxf(0, __fsub_rn(high, __half2float(zero)));
    scale = half_saturated(__fdiv_rn(range, static_cast<float>((1 << bits) - 1)));
  }
  __device__ UniformGrid grid(int bits) const {
    return UniformGrid(__half2float(scale), __half2float(zero), bits);
  }
};

}  // namespace kvant::cuda
