// The softmax weights that queries give tokens, summed over queries and the query heads of a KV head. A CTA
// has 128 tokens of one KV head, whose keys lie in shared memory; a thread has one token and half of the rows
// (a query and one of its heads) that pass by in chunks. A plain kernel: it runs once in 128 tokens.
#pragma once

#include <cuda_bf16.h>

#include "attention/cuda/decode/decode_args.h"

namespace kvant::cuda {

struct TokenWeightsArgs {
  int n_queries, n_tokens, n_visible, group;
  float softmax_scale, softcap;  // softcap: 0: none
  int q_f32;                     // not 0: queries are F32, otherwise BF16
  const void *q, *keys;          // keys: BF16
  std::int64_t q_token_stride, q_head_stride, key_token_stride, key_head_stride;
  const float* lse;
  std::int64_t lse_token_stride, lse_head_stride;
  float* weights;
  std::int64_t weight_head_stride;
};

inline constexpr int kWeighedTokens = 128;  // of a CTA
inline constexpr int kRowShares = 2;        // that the rows are divided into
inline constexpr int kWeighThreads = kWeighedTokens * kRowShares;
inline constexpr int kWeighedRows = 8;   // of a share in a chunk
inline constexpr int kRowsTogether = 4;  // for which a thread reads its key once
inline constexpr int kWeighedChunk = kRowShares * kWeighedRows;

template <int D>
struct TokenWeightsShared {
  static constexpr int kWords = D / 2;        // of two channels each
  static constexpr int kKeyRow = kWords + 1;  // so that the threads of a warp read different banks
  __nv_bfloat162 keys[kWeighedTokens * kKeyRow];
  alignas(8) float2 q[kWeighedChunk * kWords];
  float lse[kWeighedChunk];
  int last[kWeighedChunk];  // how many tokens the row's query sees, of all
  float sums[kWeighedTokens];
};

// Rows are heads of queries: row r is head r % group of query r / group.
template <int D>
__device__ void load_rows(const TokenWeightsArgs& args, int head, int first_row, int n_rows,
                          TokenWeightsShared<D>& shared) {
  constexpr int kWords = D / 2;
  for (int i = static_cast<int>(threadIdx.x); i < kWeighedChunk * kWords; i += kWeighThreads) {
    const int row = first_row + i / kWords;
    float2 pair{0, 0};
    if (row < n_rows) {
      const std::int64_t at = row / args.group * args.q_token_stride +
                              (head * args.group + row % args.group) * args.q_head_stride + i % kWords * 2;
      pair = args.q_f32 != 0 ? *reinterpret_cast<const float2*>(static_cast<const float*>(args.q) + at)
                             : __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(
                                   static_cast<const __nv_bfloat16*>(args.q) + at));
    }
    shared.q[i] = pair;
  }
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread >= kWeighedChunk) return;
  const int row = first_row + thread;
  shared.last[thread] = row < n_rows ? args.n_visible + row / args.group : 0;
  shared.lse[thread] = 0;
  if (row < n_rows)
    shared.lse[thread] = args.lse[row / args.group * args.lse_token_stride +
                                  (head * args.group + row % args.group) * args.lse_head_stride];
}

// Grid: tiles of tokens, KV heads.
template <int D>
__global__ void __launch_bounds__(kWeighThreads)
    token_weights_kernel(const __grid_constant__ TokenWeightsArgs args) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<TokenWeightsShared<D>*>(memory);
  constexpr int kWords = D / 2;
  const int head = static_cast<int>(blockIdx.y);
  const int first_token = static_cast<int>(blockIdx.x) * kWeighedTokens;
  const int n_tokens = min(kWeighedTokens, args.n_tokens - first_token);
  for (int i = static_cast<int>(threadIdx.x); i < n_tokens * kWords; i += kWeighThreads) {
    const auto* key = static_cast<const __nv_bfloat16*>(args.keys) +
                      (first_token + i / kWords) * args.key_token_stride + head * args.key_head_stride;
    shared.keys[i / kWords * TokenWeightsShared<D>::kKeyRow + i % kWords] =
        reinterpret_cast<const __nv_bfloat162*>(key)[i % kWords];
  }
  const int token = static_cast<int>(threadIdx.x) % kWeighedTokens;
  const int share = static_cast<int>(threadIdx.x) / kWeighedTokens;
  const __nv_bfloat162* key = shared.keys + token * TokenWeightsShared<D>::kKeyRow;
  const int n_rows = args.n_queries * args.group;
  float sum = 0;
  for (int first_row = 0; first_row < n_rows; first_row += kWeighedChunk) {
    __syncthreads();
    load_rows<D>(args, head, first_row, n_rows, shared);
    __syncthreads();
    if (token >= n_tokens) continue;
    for (int i = share * kWeighedRows; i < (share + 1) * kWeighedRows; i += kRowsTogether) {
      float score[kRowsTogether] = {};
      for (int word = 0; word < kWords; ++word) {
        const float2 k = __bfloat1622float2(key[word]);
#pragma unroll
        for (int j = 0; j < kRowsTogether; ++j) {
          const float2 q = shared.q[(i + j) * kWords + word];
          score[j] = fmaf(q.x, k.x, fmaf(q.y, k.y, score[j]));
        }
      }
#pragma unroll
      for (int j = 0; j < kRowsTogether; ++j) {
        float s = score[j] * args.softmax_scale;
        if (args.softcap > 0) s = args.softcap * tanhf(s / args.softcap);
        if (first_token + token < shared.last[i + j]) sum += expf(s - shared.lse[i + j]);
      }
    }
  }
  if (share == 1 && token < n_tokens) shared.sums[token] = sum;
  __syncthreads();
  if (share == 0 && token < n_tokens)
    args.weights[head * args.weight_head_stride + first_token + token] += sum + shared.sums[token];
}

}  // namespace kvant::cuda
