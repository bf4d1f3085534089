// Attends to keys and values lm2, lm3 and lm4 by warps that share the decoding of pages
// (shared_decoding.cuh). Each warp decodes a strip of a page for all columns of queries.
#pragma once

#include "device/cuda/decode/shared_decoding.cuh"
#include "device/cuda/pairs/lloyd_max.cuh"
#include "device/cuda/pairs/strips.cuh"

namespace kvant::cuda {

template <int Bits, int D>
struct LloydMaxKeyStrips : QueriesInOrder<D> {
  static constexpr int kCodes = LloydMaxKey<Bits, D>::kCodes;
  static constexpr QueryOrder kOrder = QueryOrder::columns;

  template <int Sets, int Tiles>
  static __device__ __forceinline__ void score(const DecodeArgs& args, const unsigned char* table,
                                               const unsigned char* page, int first_tile,
                                               const SharedQueries<D, Sets, kOrder>& queries, int lane,
                                               SetSums<Sets, Tiles>& s) {
#pragma unroll
    for (auto& of_set : s) clear(of_set);
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const StripWords<Tiles * 8 * Bits> codes(page, k * kTokenTiles * 8 * Bits, first_tile * 8 * Bits, lane);
      uint4 q[Sets / 2];
#pragma unroll
      for (int pair = 0; pair < Sets / 2; ++pair) q[pair] = queries.columns(k, pair, lane);
      visit_levels<Bits, Tiles>(table, codes.words, lane, [&](int m, auto a0, auto a1, auto a2, auto a3) {
#pragma unroll
        for (int pair = 0; pair < Sets / 2; ++pair) {
          mma_f16(s[2 * pair][m], a0, a1, a2, a3, q[pair].x, q[pair].y);
          mma_f16(s[2 * pair + 1][m], a0, a1, a2, a3, q[pair].z, q[pair].w);
        }
      });
    }
    const ParametersOf<Tiles> gains(page + kCodes + first_tile * 32, lane);
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
      const float2 factors = queries.factors(set, lane);
      const float factor[2] = {factors.x * args.key_unit, factors.y * args.key_unit};
#pragma unroll
      for (int m = 0; m < Tiles; ++m) {
        const float2 gain = gains.floats(m);
#pragma unroll
        for (int i = 0; i < 4; ++i) s[set][m][i] *= (i < 2 ? gain.x : gain.y) * factor[i & 1];
      }
    }
  }
};

template <int Bits, int D>
struct LloydMaxValueStrips : TokensInOrder {
  static constexpr bool kHasAddends = false, kHasTotals = false;

  template <int Tiles>
  using Tokens = ScaledTokens<Tiles, LloydMaxValue<Bits, D>::kCodes, 0>;

  template <int Sets, int Tiles>
  static __device__ __forceinline__ void mix(const DecodeArgs&, const unsigned char* table,
                                             const unsigned char* page, int first_tile,
                                             const SharedWeights<Sets, kHasTotals>& weights, int lane,
                                             SetSums<Sets, Tiles>& out) {
#pragma unroll
    for (int k = 0; k < kTokenTiles; ++k) {
      const StripWords<Tiles * 8 * Bits> codes(page, k * (D / 16) * 8 * Bits, first_tile * 8 * Bits, lane);
      const WeightsOfSets<Sets> of_tile(weights, k, lane);
      visit_levels<Bits, Tiles>(table, codes.words, lane, [&](int m, auto a0, auto a1, auto a2, auto a3) {
        of_tile.multiply(a0, a1, a2, a3, m, out);
      });
    }
  }

  static __device__ __forceinline__ void finish(const DecodeArgs& args, float (&out)[D / 16][4],
                                                const float (&)[2]) {
    multiply(out, args.value_unit);
  }
};

template <int Bits, int D>
struct LloydMaxStrips : LloydMaxPair<Bits, D> {
  static constexpr int kMixedParts = 3;
  using Key = LloydMaxKeyStrips<Bits, D>;
  using Value = LloydMaxValueStrips<Bits, D>;
};

}  // namespace kvant::cuda
