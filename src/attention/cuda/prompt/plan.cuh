// The work of a call of prompt attention: blocks of query tokens, those that see the most tokens first, so
// that multiprocessors finish together.
#pragma once

#include "attention/cuda/prompt/prompt_args.h"
#include "attention/cuda/prompt/tile_layout.cuh"

namespace kvant::cuda {

inline constexpr int kPlanThreads = 256;
inline constexpr int kPlanBins = 2048;  // of how many tiles a block sees

struct SequenceRows {
  int q_begin, q_tokens, k_begin, k_tokens;
};

__device__ __forceinline__ SequenceRows rows_of_sequence(const PromptArgs& args, int seq) {
  const int q = args.q_begins[seq];
  const int k = args.k_begins[seq];
  return {q, args.q_begins[seq + 1] - q, k, args.k_begins[seq + 1] - k};
}

__device__ __forceinline__ int tiles_of(const SequenceRows& rows) {
  return (rows.k_tokens + kTileTokens - 1) / kTileTokens;
}

__device__ __forceinline__ PromptItem item_of(const PromptArgs& args, int seq, int block, int block_rows) {
  const SequenceRows rows = rows_of_sequence(args, seq);
  PromptItem item;
  item.seq = seq;
  item.first_row = rows.q_begin + block * block_rows;
  item.n_rows = min(block_rows, rows.q_tokens - block * block_rows);
  item.kv_tokens = rows.k_tokens;
  // The last query token is the last token of all.
  item.limit = rows.k_tokens - rows.q_tokens + block * block_rows + 1;
  const int end = args.causal != 0 ? min(rows.k_tokens, item.limit + item.n_rows - 1) : rows.k_tokens;
  const int begin = args.window > 0 ? max(0, item.limit - args.window) : 0;
  item.tile = min(begin, max(rows.k_tokens - 1, 0)) / kTileTokens;
  // One tile at least: a block that sees nothing finds all of it masked.
  item.end_tile = max((end + kTileTokens - 1) / kTileTokens, item.tile + 1);
  item.first_tile = static_cast<int>(first_tile(rows.k_begin, seq));
  return item;
}

// Sorts the blocks of all sequences into args.items. One CTA of kPlanThreads.
__device__ inline void plan_prompt(const PromptArgs& args, int block_rows) {
  __shared__ int bins[kPlanBins];
  __shared__ int sums[kPlanThreads];
  constexpr int kPerThread = kPlanBins / kPlanThreads;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kPlanBins; i += kPlanThreads) bins[i] = 0;
  __syncthreads();
  const auto for_each_item = [&](const auto& body) {
    for (int seq = 0; seq < args.n_seqs; ++seq) {
      const int n = (rows_of_sequence(args, seq).q_tokens + block_rows - 1) / block_rows;
      for (int block = thread; block < n; block += kPlanThreads) {
        const PromptItem item = item_of(args, seq, block, block_rows);
        // Bin 0 is for the longest.
        body(item, kPlanBins - 1 - min(item.end_tile - item.tile, kPlanBins - 1));
      }
    }
  };
  for_each_item([&](const PromptItem&, int bin) { atomicAdd(&bins[bin], 1); });
  __syncthreads();
  int sum = 0;
  for (int i = 0; i < kPerThread; ++i) sum += bins[thread * kPerThread + i];
  sums[thread] = sum;
  __syncthreads();
  for (int step = 1; step < kPlanThreads; step *= 2) {
    const int before = thread >= step ? sums[thread - step] : 0;
    __syncthreads();
    sums[thread] += before;
    __syncthreads();
  }
  int place = sums[thread] - sum;
  for (int i = 0; i < kPerThread; ++i) {
    const int n = bins[thread * kPerThread + i];
    bins[thread * kPerThread + i] = place;
    place += n;
  }
  if (thread == kPlanThreads - 1) {
    *args.n_items = sums[thread];
    *args.next = 0;
  }
  __syncthreads();
  for_each_item([&](const PromptItem& item, int bin) { args.items[atomicAdd(&bins[bin], 1)] = item; });
}

}  // namespace kvant::cuda
