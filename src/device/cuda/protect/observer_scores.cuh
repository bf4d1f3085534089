// Computes the scores of tokens for the queries of observers, with products of warps (mma.sync) for 16 rows
// and 8 tokens. A row is one head of one query. Row r is head r % group of query r / group.
//
// MMA fragments are read directly from rows and keys, 16 bytes at a time, so products visit channels in
// a different order. Among 32 channels, lane t of four has channels 8 t to 8 t + 7, which serve two steps
// of 16. Keys are BF16. Queries have more bits, so each number of a query is the sum of two BF16 numbers,
// which have 16 bits together.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "device/cuda/common/ptx.cuh"
#include "device/cuda/page/row_channels.cuh"

namespace kvant::cuda {

// Holds the arguments of the kernels that compute token weights.
struct TokenWeightsArgs {
  int n_queries, n_tokens, n_visible, group;
  float softmax_scale, softcap;  // softcap is 0 if scores have no cap
  NumberType q_type;
  const void *q, *keys;  // keys are BF16
  std::int64_t q_token_stride, q_head_stride, key_token_stride, key_head_stride;
  float* lse;
  std::int64_t lse_token_stride, lse_head_stride;
  float* weights;
  std::int64_t weight_head_stride;
};

inline constexpr int kScoredRows = 16, kScoredTokens = 8;
inline constexpr float kLog2E = 1.44269504F;
inline constexpr int kBlockChannels = 32;

// Returns to how many tokens a row attends.
__device__ __forceinline__ int tokens_seen(const TokenWeightsArgs& args, int row) {
  const int query = row / args.group;
  return query < args.n_queries ? min(args.n_visible + query, args.n_tokens) : 0;
}
// Returns the address of a row's LSE.
__device__ __forceinline__ float* lse_of(const TokenWeightsArgs& args, int head, int row) {
  return args.lse + row / args.group * args.lse_token_stride +
         (head * args.group + row % args.group) * args.lse_head_stride;
}

// Holds 16 rows and 32 channels of queries, which are the A operands of two steps.
struct RowBlock {
  std::uint32_t high[2][4], low[2][4];
};

// Loads rows first_row to first_row + 15. Each lane gets two of them. Rows after the last are zeros.
__device__ __forceinline__ RowBlock load_rows(const TokenWeightsArgs& args, int head, int first_row,
                                              int block, int lane) {
  RowBlock rows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + lane / 4 + 8 * half;
    float x[8] = {};
    if (row / args.group < args.n_queries) {
      const std::int64_t at = row / args.group * args.q_token_stride +
                              (head * args.group + row % args.group) * args.q_head_stride +
                              block * kBlockChannels + lane % 4 * 8;
      load_channels(args.q, {args.q_type, /*is_wide=*/1}, at, x);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t high = pack_bf16x2(x[2 * i], x[2 * i + 1]);
      const float2 rounded = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&high));
      rows.high[i / 2][half + i % 2 * 2] = high;
      rows.low[i / 2][half + i % 2 * 2] = pack_bf16x2(x[2 * i] - rounded.x, x[2 * i + 1] - rounded.y);
    }
  }
  return rows;
}

// Loads this lane's channels of the keys of 8 tokens, which are the B operands of two steps. Tokens after the
// last are zeros.
__device__ __forceinline__ uint4 load_keys(const TokenWeightsArgs& args, int head, int first_token, int block,
                                           int lane) {
  const int token = first_token + lane / 4;
  if (token >= args.n_tokens) return make_uint4(0, 0, 0, 0);
  return *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(args.keys) +
                                         token * args.key_token_stride + head * args.key_head_stride +
                                         block * kBlockChannels + lane % 4 * 8);
}

// Adds the products of 32 channels of 16 rows and 8 tokens to `score`.
__device__ __forceinline__ void add_products(float (&score)[4], const RowBlock& rows, const uint4& keys) {
  const auto add = [&](const std::uint32_t(&a)[4], std::uint32_t b0, std::uint32_t b1) {
    mma_bf16(score, a[0], a[1], a[2], a[3], b0, b1);
  };
  add(rows.high[0], keys.x, keys.y);
  add(rows.low[0], keys.x, keys.y);
  add(rows.high[1], keys.z, keys.w);
  add(rows.low[1], keys.z, keys.w);
}

// Converts a product to a score in units of log 2.
__device__ __forceinline__ float score_of(const TokenWeightsArgs& args, float product) {
  const float score = product * args.softmax_scale;
  return (args.softcap > 0 ? args.softcap * tanhf(score / args.softcap) : score) * kLog2E;
}

}  // namespace kvant::cuda
