// Attends to keys ch<B>g128 and values tok<B>g128 by warps that share the decoding of pages
// (shared_decoding.cuh). Each warp decodes a strip of a page for all columns of queries.
#pragma once

#include "device/cuda/decode/shared_decoding.cuh"
#include "device/cuda/pairs/linear.cuh"
#include "device/cuda/pairs/strips.cuh"

namespace kvant::cuda {

template <int Bits, int D>
struct ChannelKeyStrips : QueriesInOrder<D> {
  static constexpr int kCodes = ChannelKey<Bits, D>::kCodes;
  static constexpr QueryOrder kOrder = QueryOrder::rows;

  // Computes the scores of the tokens of `Tiles` tiles from first_tile on, for all columns of queries.
  template <int Sets, int Tiles>
  static __device__ __forceinline__ void score(const DecodeArgs&, const unsigned char*,
                                               const unsigned char* page, int first_tile,
                                               const SharedQueries<D, Sets, kOrder>& queries, int lane,
                                               SetSums<Sets, Tiles>& s) {
    const auto* scales = reinterpret_cast<const uint4*>(page + kCodes + lane % 4 * (D / 2));
    const auto* zeros = reinterpret_cast<const uint4*>(page + kCodes + 2 * D + lane % 4 * (D / 2));
    uint4 two_scales, two_zeros;  // parameters of two contraction tiles
#pragma unroll
    for (auto& of_set : s) clear(of_set);
    ColumnSums<Sets> zero;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      if (k % 2 == 0) {
        two_scales = scales[k / 2];
        two_zeros = zeros[k / 2];
      }
      const uint2 scale =
          k % 2 == 0 ? make_uint2(two_scales.x, two_scales.y) : make_uint2(two_scales.z, two_scales.w);
      const uint2 z =
          k % 2 == 0 ? make_uint2(two_zeros.x, two_zeros.y) : make_uint2(two_zeros.z, two_zeros.w);
      std::uint32_t b[Sets][2];
#pragma unroll
      for (int pair = 0; pair < Sets / 2; ++pair) {
        const uint4 q = queries.columns(k, pair, lane);
        zero.add(pair, queries.rows(k, pair, lane), z.x, z.y);
        b[2 * pair][0] = multiply_half2(q.x, scale.x);
        b[2 * pair][1] = multiply_half2(q.y, scale.y);
        b[2 * pair + 1][0] = multiply_half2(q.z, scale.x);
        b[2 * pair + 1][1] = multiply_half2(q.w, scale.y);
      }
      visit_strip<Bits, kTokenTiles, Tiles>(page, k, first_tile, lane,
                                            [&](int m, auto a0, auto a1, auto a2, auto a3) {
#pragma unroll
                                              for (int set = 0; set < Sets; ++set)
                                                mma_f16(s[set][m], a0, a1, a2, a3, b[set][0], b[set][1]);
                                            });
    }
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
      const float2 factors = queries.factors(set, lane);
      const float factor[2] = {factors.x, factors.y};
      const float offset[2] = {zero.of(set, 0, lane) * factor[0], zero.of(set, 1, lane) * factor[1]};
#pragma unroll
      for (int m = 0; m < Tiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          s[set][m][i] = fmaf(s[set][m][i], factor[i & 1] * code_unit<Bits>(m, i / 2), offset[i & 1]);
      }
    }
  }
};

template <int Bits, int D>
struct TokenValueStrips : TokensInOrder {
  using Whole = TokenValue<Bits, D>;
  static constexpr bool kHasAddends = true, kHasTotals = false;

  template <int Tiles>
  using Tokens = ScaledTokens<Tiles, Whole::kCodes, Whole::kCodes + 2 * kPageTokens>;

  // Adds the products of all tokens' weights with the channels of `Tiles` tiles from first_tile on.
  template <int Sets, int Tiles>
  static __device__ __forceinline__ void mix(const DecodeArgs&, const unsigned char*,
                                             const unsigned char* page, int first_tile,
                                             const SharedWeights<Sets, kHasTotals>& weights, int lane,
                                             SetSums<Sets, Tiles>& out) {
#pragma unroll
    for (int k = 0; k < kTokenTiles; ++k) {
      const WeightsOfSets<Sets> of_tile(weights, k, lane);
      visit_strip<Bits, D / 16, Tiles>(
          page, k, first_tile, lane,
          [&](int m, auto a0, auto a1, auto a2, auto a3) { of_tile.multiply(a0, a1, a2, a3, m, out); });
    }
  }

  // Converts the sums over codes to sums over values. `addend` holds the sums of weights times zeros over
  // tokens, for heads 2t and 2t + 1.
  static __device__ __forceinline__ void finish(const DecodeArgs&, float (&out)[D / 16][4],
                                                const float (&addend)[2]) {
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[m][i] = fmaf(out[m][i], code_unit<Bits>(m, i / 2), addend[i & 1]);
    }
  }
};

template <int KeyBits, int ValueBits, int D>
struct LinearStrips : NoTables {
  static constexpr int kMixedParts = 3;
  static constexpr bool kSealed = true;
  using Key = ChannelKeyStrips<KeyBits, D>;
  using Value = TokenValueStrips<ValueBits, D>;
};

}  // namespace kvant::cuda
