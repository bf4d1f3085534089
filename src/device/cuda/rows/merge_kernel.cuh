// Merges two attention outputs over different tokens into the output over all of the tokens. Each output
// counts in proportion to its sum of exponentials, which follows from its LSE. A warp merges each row.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device/cuda/common/arguments.h"
#include "device/cuda/page/page_layout.h"

namespace kvant::cuda {

// Locates rows of outputs and their LSE. Strides are in numbers.
struct PartialRows {
  void* out;
  NumberType type;
  std::int64_t seq_stride, token_stride, head_stride;
  float* lse;
  std::int64_t lse_seq_stride, lse_token_stride, lse_head_stride;
};

struct MergeArgs {
  int n_tokens, n_heads;
  std::int64_t n_rows;  // rows over all sequences
  PartialRows into, other;
};

inline constexpr int kMergeThreads = 256;

__device__ __forceinline__ float2 load_pair(const PartialRows& rows, std::int64_t index) {
  if (rows.type == NumberType::f32)
    return *reinterpret_cast<const float2*>(static_cast<const float*>(rows.out) + index);
  if (rows.type == NumberType::f16)
    return __half22float2(*reinterpret_cast<const __half2*>(static_cast<const __half*>(rows.out) + index));
  return __bfloat1622float2(
      *reinterpret_cast<const __nv_bfloat162*>(static_cast<const __nv_bfloat16*>(rows.out) + index));
}
__device__ __forceinline__ void store_pair(const PartialRows& rows, std::int64_t index, float2 x) {
  if (rows.type == NumberType::f32) {
    *reinterpret_cast<float2*>(static_cast<float*>(rows.out) + index) = x;
  } else if (rows.type == NumberType::f16) {
    *reinterpret_cast<__half2*>(static_cast<__half*>(rows.out) + index) = __float22half2_rn(x);
  } else {
    *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(rows.out) + index) =
        __float22bfloat162_rn(x);
  }
}

// Merges the rows of `other` into the rows of `into`.
template <int D>
__global__ void __launch_bounds__(kMergeThreads) merge_kernel(const __grid_constant__ MergeArgs args) {
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (kMergeThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if (row >= args.n_rows) return;
  const std::int64_t head = row % args.n_heads;
  const std::int64_t token = row / args.n_heads % args.n_tokens;
  const std::int64_t seq = row / args.n_heads / args.n_tokens;
  const auto sum_of = [&](const PartialRows& rows) {
    return rows.lse + seq * rows.lse_seq_stride + token * rows.lse_token_stride + head * rows.lse_head_stride;
  };
  const float sums[2] = {*sum_of(args.into), *sum_of(args.other)};
  const float maximum = fmaxf(sums[0], sums[1]);
  if (maximum == -INFINITY) return;  // neither output has any tokens
  const float masses[2] = {expf(sums[0] - maximum), expf(sums[1] - maximum)};
  const float mass = masses[0] + masses[1];
  const auto first_of = [&](const PartialRows& rows) {
    return seq * rows.seq_stride + token * rows.token_stride + head * rows.head_stride;
  };
#pragma unroll
  for (int i = 2 * lane; i < D; i += 2 * kLanes) {
    float2 x{};  // an output without tokens may hold NaN and is not read
    if (masses[0] > 0) {
      const float2 part = load_pair(args.into, first_of(args.into) + i);
      x = {part.x * masses[0], part.y * masses[0]};
    }
    if (masses[1] > 0) {
      const float2 part = load_pair(args.other, first_of(args.other) + i);
      x.x += part.x * masses[1];
      x.y += part.y * masses[1];
    }
    store_pair(args.into, first_of(args.into) + i, {x.x / mass, x.y / mass});
  }
  __syncwarp();
  if (lane == 0) *sum_of(args.into) = maximum + logf(mass);
}

}  // namespace kvant::cuda
