// Rows of queries into the basis of transformed keys, or of outputs back from that of transformed values. A
// warp transforms a row.
#pragma once

#include <cuda_bf16.h>

#include "attention/cuda/decode_args.h"
#include "attention/cuda/ptx.cuh"

namespace kvant::cuda {

struct TransformArgs {
  std::int64_t n_rows;
  int n_heads;
  void* rows;
  int is_f32;
  std::int64_t row_stride, head_stride;
  const float *factors, *factors_after;
  int heads_of_factors;
  int hadamard;
};

inline constexpr int kTransformThreads = 256;

template <int D>
__global__ void __launch_bounds__(kTransformThreads)
    transform_kernel(const __grid_constant__ TransformArgs args) {
  wait_for_predecessors();
  admit_successors();
  constexpr int kOwn = D / kLanes;  // channels of a lane: lane, lane + 32, ...
  const std::int64_t i =
      static_cast<std::int64_t>(blockIdx.x) * (kTransformThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if (i >= args.n_rows * args.n_heads) return;
  const std::int64_t head = i % args.n_heads;
  const std::int64_t first = i / args.n_heads * args.row_stride + head * args.head_stride + lane;
  const std::int64_t first_factor = head / args.heads_of_factors * D + lane;
  float x[kOwn];
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const std::int64_t at = first + j * kLanes;
    x[j] = args.is_f32 != 0 ? static_cast<const float*>(args.rows)[at]
                            : __bfloat162float(static_cast<const __nv_bfloat16*>(args.rows)[at]);
    if (args.factors != nullptr) x[j] *= args.factors[first_factor + j * kLanes];
  }
  if (args.hadamard != 0) {
#pragma unroll
    for (int half = 1; half < kLanes; half *= 2) {
#pragma unroll
      for (float& own : x) {
        const float other = __shfl_xor_sync(~0U, own, half);
        own = (lane & half) == 0 ? own + other : other - own;
      }
    }
#pragma unroll
    for (int half = 1; half < kOwn; half *= 2) {
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        if ((j & half) != 0) continue;
        const float low = x[j];
        x[j] = low + x[j | half];
        x[j | half] = low - x[j | half];
      }
    }
  }
  const float unit = args.hadamard != 0 ? rsqrtf(static_cast<float>(D)) : 1;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const std::int64_t at = first + j * kLanes;
    x[j] *= unit;
    if (args.factors_after != nullptr) x[j] *= args.factors_after[first_factor + j * kLanes];
    if (args.is_f32 != 0) {
      static_cast<float*>(args.rows)[at] = x[j];
    } else {
      static_cast<__nv_bfloat16*>(args.rows)[at] = __float2bfloat16(x[j]);
    }
  }
}

}  // namespace kvant::cuda
