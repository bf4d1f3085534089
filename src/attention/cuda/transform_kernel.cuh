// Rows of queries into the basis of transformed keys, or of outputs back from that of transformed values. A
// warp transforms a row.
#pragma once

#include <cuda_bf16.h>

#include "attention/cuda/decode_args.h"
#include "attention/cuda/ptx.cuh"

namespace kvant::cuda {

// Where rows lie: head h of row i at i * row_stride + h * head_stride.
template <class Memory>
struct TransformRows {
  Memory* rows;
  std::int64_t row_stride, head_stride;
};

struct TransformArgs {
  std::int64_t n_rows;
  int n_heads;
  TransformRows<void> to;
  TransformRows<const void> from;
  int to_f32, from_f32;
  int is_wide;  // rows begin where kRowAlignment bytes fit
  const float *factors, *factors_after;
  int heads_of_factors;
  int hadamard;
};

inline constexpr int kTransformThreads = 256;
inline constexpr int kRowAlignment = 16;

// N neighbouring channels: several at a time where they lie well.
template <int N>
__device__ __forceinline__ void load_channels(const TransformArgs& args, std::int64_t at, float (&x)[N]) {
  if (args.from_f32 != 0) {
    const float* const from = static_cast<const float*>(args.from.rows) + at;
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      const float2 pair =
          args.is_wide != 0 ? *reinterpret_cast<const float2*>(from + j) : make_float2(from[j], from[j + 1]);
      x[j] = pair.x;
      x[j + 1] = pair.y;
    }
    return;
  }
  const auto* const from = static_cast<const __nv_bfloat16*>(args.from.rows) + at;
  struct alignas(2 * N) Channels {
    __nv_bfloat16 x[N];
  } channels;
  if (args.is_wide != 0) {
    channels = *reinterpret_cast<const Channels*>(from);
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) channels.x[j] = from[j];
  }
#pragma unroll
  for (int j = 0; j < N; ++j) x[j] = __bfloat162float(channels.x[j]);
}

template <int N>
__device__ __forceinline__ void store_channels(const TransformArgs& args, std::int64_t at,
                                               const float (&x)[N]) {
  if (args.to_f32 != 0) {
    float* const to = static_cast<float*>(args.to.rows) + at;
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      if (args.is_wide != 0) {
        *reinterpret_cast<float2*>(to + j) = make_float2(x[j], x[j + 1]);
      } else {
        to[j] = x[j];
        to[j + 1] = x[j + 1];
      }
    }
    return;
  }
  auto* const to = static_cast<__nv_bfloat16*>(args.to.rows) + at;
  struct alignas(2 * N) Channels {
    __nv_bfloat16 x[N];
  } channels;
#pragma unroll
  for (int j = 0; j < N; ++j) channels.x[j] = __float2bfloat16(x[j]);
  if (args.is_wide != 0) {
    *reinterpret_cast<Channels*>(to) = channels;
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) to[j] = channels.x[j];
  }
}

template <int D>
__global__ void __launch_bounds__(kTransformThreads)
    transform_kernel(const __grid_constant__ TransformArgs args) {
  wait_for_predecessors();
  admit_successors();
  constexpr int kOwn = D / kLanes;  // neighbouring channels of a lane
  const std::int64_t i =
      static_cast<std::int64_t>(blockIdx.x) * (kTransformThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if (i >= args.n_rows * args.n_heads) return;
  const std::int64_t row = i / args.n_heads;
  const std::int64_t head = i % args.n_heads;
  const std::int64_t first_factor = head / args.heads_of_factors * D + lane * kOwn;
  float x[kOwn];
  load_channels(args, row * args.from.row_stride + head * args.from.head_stride + lane * kOwn, x);
  if (args.factors != nullptr) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) x[j] *= args.factors[first_factor + j];
  }
  if (args.hadamard != 0) {
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
#pragma unroll
    for (int half = 1; half < kLanes; half *= 2) {
#pragma unroll
      for (float& own : x) {
        const float other = __shfl_xor_sync(~0U, own, half);
        own = (lane & half) == 0 ? own + other : other - own;
      }
    }
  }
  const float unit = args.hadamard != 0 ? rsqrtf(static_cast<float>(D)) : 1;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    x[j] *= unit;
    if (args.factors_after != nullptr) x[j] *= args.factors_after[first_factor + j];
  }
  store_channels(args, row * args.to.row_stride + head * args.to.head_stride + lane * kOwn, x);
}

}  // namespace kvant::cuda
