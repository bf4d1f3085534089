// Computes for each row the LSE of the scores of all tokens to which the row attends. A CTA has 32 rows of a
// KV head. Four warps share 16 of the rows, and each takes every fourth set of tokens.
#pragma once

#include "device/cuda/protect/observer_scores.cuh"

namespace kvant::cuda {

inline constexpr int kRowSets = 2;      // sets of rows for a CTA
inline constexpr int kTokenShares = 4;  // parts into which tokens are divided
inline constexpr int kScoreSumThreads = kRowSets * kTokenShares * 32;

// Holds a sum of 2^(score - top), where `top` is the largest of the scores.
struct ScoreSum {
  float top = -1e30F, sum = 0;

  __device__ __forceinline__ void add(const ScoreSum& other) {
    const float higher = fmaxf(top, other.top);
    sum = sum * exp2_fast(top - higher) + other.sum * exp2_fast(other.top - higher);
    top = higher;
  }
};

// Computes the LSE of 32 rows. The grid is [KV heads][sets of 32 rows].
template <int D>
__global__ void __launch_bounds__(kScoreSumThreads, 1)
    score_sums_kernel(const __grid_constant__ TokenWeightsArgs args) {
  // The keys of this many sets of 8 tokens are loaded together before they are used.
  constexpr int kTogether = 4;
  constexpr int kBlocks = D / kBlockChannels;
  __shared__ ScoreSum sums[kTokenShares][kRowSets * kScoredRows];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row_set = warp % kRowSets, share = warp / kRowSets;
  const int head = static_cast<int>(blockIdx.y);
  const int first_row = (static_cast<int>(blockIdx.x) * kRowSets + row_set) * kScoredRows;
  RowBlock rows[kBlocks];
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) rows[block] = load_rows(args, head, first_row, block, lane);
  int seen[2];
  ScoreSum of_row[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) seen[half] = tokens_seen(args, first_row + lane / 4 + 8 * half);
  const int end = min(args.n_visible + (first_row + kScoredRows - 1) / args.group, args.n_tokens);
  for (int token = share * kTogether * kScoredTokens; token < end;
       token += kTokenShares * kTogether * kScoredTokens) {
    float score[kTogether][4] = {};
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      uint4 keys[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        keys[i] = load_keys(args, head, token + i * kScoredTokens, block, lane);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) add_products(score[i], rows[block], keys[i]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ScoreSum here;
      float scores[2 * kTogether];
#pragma unroll
      for (int i = 0; i < 2 * kTogether; ++i) {
        const int column = token + i / 2 * kScoredTokens + lane % 4 * 2 + i % 2;
        scores[i] = column < seen[half] ? score_of(args, score[i / 2][2 * half + i % 2]) : -INFINITY;
        here.top = fmaxf(here.top, scores[i]);
      }
#pragma unroll
      for (int i = 0; i < 2 * kTogether; ++i) here.sum += exp2_fast(scores[i] - here.top);
      of_row[half].add(here);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
      of_row[half].add(
          {__shfl_xor_sync(~0U, of_row[half].top, step), __shfl_xor_sync(~0U, of_row[half].sum, step)});
    if (lane % 4 == 0) sums[share][row_set * kScoredRows + lane / 4 + 8 * half] = of_row[half];
  }
  __syncthreads();
  const auto thread = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x) * kRowSets * kScoredRows + thread;
  if (thread >= kRowSets * kScoredRows || row / args.group >= args.n_queries) return;
  ScoreSum total;
#pragma unroll
  for (int i = 0; i < kTokenShares; ++i) total.add(sums[i][thread]);
  *lse_of(args, head, row) = total.sum > 0 ? (total.top + log2f(total.sum)) / kLog2E : -INFINITY;
}

}  // namespace kvant::cuda
