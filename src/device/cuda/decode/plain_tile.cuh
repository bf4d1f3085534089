// Attends to a tile of 16 unquantized tokens with one warp. The caller supplies the MMA fragments of keys and
// values, whose layout is that of unquantized pages (plain_index). Queries and weights have more bits than
// BF16, so each is multiplied as the sum of two BF16 numbers.
#pragma once

#include "device/cuda/common/ptx.cuh"
#include "device/cuda/decode/online_softmax.cuh"
#include "device/cuda/decode/query.cuh"

namespace kvant::cuda {

inline constexpr int kTileTokens = 16;

// Computes scores of the tile's tokens. Lane 4g + t gets row g and then row g + 8, each with heads 2t and 2t
// + 1. keys(k) returns this lane's part of fragment k, with k < D / 16.
template <int D, class Fragments>
__device__ __forceinline__ void score_tile(const Query<D>& query, const Fragments& keys, float (&s)[1][4]) {
  // Products alternate between two sums, because a product waits for the previous product that adds to its
  // sum.
  float high[2][4] = {}, low[2][4] = {};
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const uint4 a = keys(k);
    const SplitPair q0 = split_half2(query.b[k][0]), q1 = split_half2(query.b[k][1]);
    mma_bf16(high[k % 2], a.x, a.y, a.z, a.w, q0.high, q1.high);
    mma_bf16(low[k % 2], a.x, a.y, a.z, a.w, q0.low, q1.low);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    s[0][i] = (high[0][i] + high[1][i] + (low[0][i] + low[1][i])) * query.factor[i & 1];
}

// Describes which tokens of a tile, page or sequence are visible to all columns: [hidden, n), counted from
// the first token.
struct SeenTokens {
  int hidden, n;

  // Returns the range for column 2t + h. In SeenTokens, all columns share one range.
  __device__ const SeenTokens& of(int) const { return *this; }
  // Returns the range counted from token `first` on.
  __device__ SeenTokens from(int first) const { return {hidden - first, n - first}; }
};
// Describes which of n tokens are visible to each of this lane's two columns.
struct SeenTokensOfTwo {
  SeenTokens columns[2];
  int n;

  __device__ const SeenTokens& of(int h) const { return columns[h]; }
  __device__ SeenTokensOfTwo from(int first) const {
    return {{columns[0].from(first), columns[1].from(first)}, n - first};
  }
};

// Turns scores of the tile's tokens into weights. A token that is hidden from a column gets weight 0.
template <class Pair, class Args, class Seen, int D>
__device__ __forceinline__ void weigh_tile(const Args& args, const Seen& seen, int lane, float (&s)[1][4],
                                           Accumulator<D>& acc) {
  cap_scores<Pair>(args, s);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = i / 2 * 8 + lane / 4;
    const int n = seen.of(i & 1).n, hidden = seen.of(i & 1).hidden;
    if (token >= n || token < hidden) s[0][i] = -INFINITY;
  }
  NoState none;
  online_softmax<Pair>(args, s, acc, none);
}

// Adds the values of the tile's first n tokens, times the weights `s`, to `acc`. values(m) must return this
// lane's part of fragment m, for m from 0 to D / 16 - 1.
template <int D, class Fragments>
__device__ __forceinline__ void mix_tile(const float (&s)[1][4], int n, int lane, const Fragments& values,
                                         Accumulator<D>& acc) {
  const int t = lane % 4;
  const SplitPair upper = split_bf16x2(s[0][0], s[0][1]), lower = split_bf16x2(s[0][2], s[0][3]);
  const std::uint32_t b0 = transpose_8x8(upper.high), b1 = transpose_8x8(lower.high);
  const std::uint32_t rest0 = transpose_8x8(upper.low), rest1 = transpose_8x8(lower.low);
  // Values after the last token are set to zero, because the memory there may hold anything, including NaN.
  const std::uint32_t even = (2 * t < n ? 0xffffU : 0) | (2 * t + 1 < n ? 0xffff0000U : 0);
  const std::uint32_t odd = (2 * t + 8 < n ? 0xffffU : 0) | (2 * t + 9 < n ? 0xffff0000U : 0);
#pragma unroll
  for (int m = 0; m < D / 16; ++m) {
    const uint4 a = values(m);
    mma_bf16(acc.out[m], a.x & even, a.y & even, a.z & odd, a.w & odd, b0, b1);
    mma_bf16(acc.out[m], a.x & even, a.y & even, a.z & odd, a.w & odd, rest0, rest1);
  }
}

}  // namespace kvant::cuda
