// Computes the softmax weights that queries give tokens, summed over queries and the query heads of a KV
// head. A warp has 32 tokens of one KV head. The keys of these tokens stay in registers while the warp
// processes all rows.
#pragma once

#include "device/cuda/protect/observer_scores.cuh"

namespace kvant::cuda {

inline constexpr int kWeighThreads = 128;
inline constexpr int kTokenSets = 4;  // sets of 8 tokens for a warp
inline constexpr int kWeighedTokens = kWeighThreads / 32 * kTokenSets * kScoredTokens;  // tokens for a CTA

// Adds up the weights of a tile of tokens. The grid is [KV heads][tiles of tokens].
template <int D>
__global__ void __launch_bounds__(kWeighThreads)
    token_weights_kernel(const __grid_constant__ TokenWeightsArgs args) {
  constexpr int kBlocks = D / kBlockChannels;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.y);
  const int first_token = static_cast<int>(blockIdx.x) * kWeighedTokens + warp * kTokenSets * kScoredTokens;
  if (first_token >= args.n_tokens) return;
  uint4 keys[kTokenSets][kBlocks];
#pragma unroll
  for (int i = 0; i < kTokenSets; ++i)
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      keys[i][block] = load_keys(args, head, first_token + i * kScoredTokens, block, lane);
  // The sums are over this lane's rows, for its two tokens of each set.
  float sums[kTokenSets][2] = {};
  // The rows of earlier queries attend to none of the warp's tokens.
  const int first_query = max(first_token + 1 - args.n_visible, 0);
  const int n_rows = args.n_queries * args.group;
  for (int row = first_query * args.group / kScoredRows * kScoredRows; row < n_rows; row += kScoredRows) {
    float score[kTokenSets][4] = {};
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const RowBlock rows = load_rows(args, head, row, block, lane);
#pragma unroll
      for (int i = 0; i < kTokenSets; ++i) add_products(score[i], rows, keys[i][block]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = row + lane / 4 + 8 * half;
      const int seen = tokens_seen(args, own);
      const float lse = own < n_rows ? *lse_of(args, head, own) * kLog2E : 0;
#pragma unroll
      for (int i = 0; i < 2 * kTokenSets; ++i) {
        const int token = first_token + i / 2 * kScoredTokens + lane % 4 * 2 + i % 2;
        if (token < seen)
          sums[i / 2][i % 2] += exp2_fast(score_of(args, score[i / 2][2 * half + i % 2]) - lse);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2 * kTokenSets; ++i) {
    float sum = sums[i / 2][i % 2];
#pragma unroll
    for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0U, sum, step);
    const int token = first_token + i / 2 * kScoredTokens + lane % 4 * 2 + i % 2;
    if (lane < 4 && token < args.n_tokens) args.weights[head * args.weight_head_stride + token] += sum;
  }
}

}  // namespace kvant::cuda
