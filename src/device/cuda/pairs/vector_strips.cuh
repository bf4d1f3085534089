// Attends to vector codes by warps that share the decoding of pages (shared_decoding.cuh). Each warp decodes
// a strip of a page for all columns of queries.
#pragma once

#include "device/cuda/decode/shared_decoding.cuh"
#include "device/cuda/pairs/strips.cuh"
#include "device/cuda/pairs/vector.cuh"

namespace kvant::cuda {

template <int Channels, int Bits, int D, Gains Gain>
struct VectorKeyStrips : QueriesInOrder<D> {
  using Whole = VectorKey<Channels, Bits, D, Gain>;
  static constexpr QueryOrder kOrder = QueryOrder::columns;

  template <int Sets, int Tiles>
  static __device__ __forceinline__ void score(const DecodeArgs&, const unsigned char* table,
                                               const unsigned char* page, int first_tile,
                                               const SharedQueries<D, Sets, kOrder>& queries, int lane,
                                               SetSums<Sets, Tiles>& s) {
    constexpr int kOfTile = 2 * Whole::kPerRow;  // codes per tile of tokens and group
#pragma unroll
    for (auto& of_set : s) clear(of_set);
#pragma unroll
    for (int group = 0; group < D / 16 / Whole::kTiles; ++group) {
      const StripWords<Tiles * kOfTile * Bits> codes(page, group * Whole::kGroupCodes * Bits,
                                                     first_tile * kOfTile * Bits, lane);
      const auto look_up = [&](int i) {
        return look_up_centroid<Channels, Bits>(table, codes.words, i, lane);
      };
      uint4 q[Whole::kTiles][Sets / 2];
#pragma unroll
      for (int i = 0; i < Whole::kTiles; ++i) {
#pragma unroll
        for (int pair = 0; pair < Sets / 2; ++pair)
          q[i][pair] = queries.columns(group * Whole::kTiles + i, pair, lane);
      }
#pragma unroll
      for (int m = 0; m < Tiles; ++m) {
        const auto add = [&](int i, auto a0, auto a1, auto a2, auto a3) {
#pragma unroll
          for (int pair = 0; pair < Sets / 2; ++pair) {
            mma_f16(s[2 * pair][m], a0, a1, a2, a3, q[i][pair].x, q[i][pair].y);
            mma_f16(s[2 * pair + 1][m], a0, a1, a2, a3, q[i][pair].z, q[i][pair].w);
          }
        };
        const auto row_0 = look_up(m * kOfTile), row_1 = look_up(m * kOfTile + 1);
        if constexpr (Channels == 2) {
          const auto row_0_high = look_up(m * kOfTile + 2), row_1_high = look_up(m * kOfTile + 3);
          add(0, row_0.pairs[0], row_1.pairs[0], row_0_high.pairs[0], row_1_high.pairs[0]);
        } else {
#pragma unroll
          for (int i = 0; i < Whole::kTiles; ++i)
            add(i, row_0.pairs[2 * i], row_1.pairs[2 * i], row_0.pairs[2 * i + 1], row_1.pairs[2 * i + 1]);
        }
      }
    }
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
      const float2 factor = queries.factors(set, lane);
#pragma unroll
      for (int m = 0; m < Tiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[set][m][i] *= i % 2 == 0 ? factor.x : factor.y;
      }
    }
    if constexpr (Gain == Gains::of_tokens) {
      const ParametersOf<Tiles> gains(page + Whole::kCodes + first_tile * 32, lane);
#pragma unroll
      for (int m = 0; m < Tiles; ++m) {
        const float2 gain = gains.floats(m);
#pragma unroll
        for (int set = 0; set < Sets; ++set) {
#pragma unroll
          for (int i = 0; i < 4; ++i) s[set][m][i] *= i < 2 ? gain.x : gain.y;
        }
      }
    }
  }
};

// VectorValueStrips adds up vector-quantized values. table_at is the offset of their codebook among the
// tables.
template <int Channels, int Bits, int D, Gains Gain, int table_at>
struct VectorValueStrips : TokensInOrder {
  using Whole = VectorValue<Channels, Bits, D, Gain>;
  static constexpr bool kHasAddends = false, kHasTotals = false;

  template <int Tiles>
  using Tokens = std::conditional_t<Gain == Gains::none, PlainTokens, ScaledTokens<Tiles, Whole::kCodes, 0>>;

  template <int Sets, int Tiles>
  static __device__ __forceinline__ void mix(const DecodeArgs&, const unsigned char* tables,
                                             const unsigned char* page, int first_tile,
                                             const SharedWeights<Sets, kHasTotals>& weights, int lane,
                                             SetSums<Sets, Tiles>& out) {
    // If a code covers more tiles of channels than the warp has, the warp uses half of the code's channels.
    constexpr bool kHalves = Whole::kSpan > Tiles;
    static_assert(!kHalves || (Channels == 8 && Tiles == 2));
    constexpr int kSpan = kHalves ? Tiles : Whole::kSpan;
    constexpr int kCodes = 4 * (Tiles / kSpan);  // codes per tile of tokens
    const unsigned char* table = tables + table_at;
    if constexpr (kHalves) table += first_tile / Tiles % 2 * 8;
#pragma unroll
    for (int k = 0; k < kTokenTiles; ++k) {
      const StripWords<kCodes * Bits> codes(page, k * Whole::kGroupCodes * Bits,
                                            first_tile / Whole::kSpan * 4 * Bits, lane);
      const WeightsOfSets<Sets> of_tile(weights, k, lane);
#pragma unroll
      for (int m = 0; m < Tiles; m += kSpan) {
        Centroid<2 * kSpan> tokens[4];  // channels 2m, 2m + 1, ... of the lane's tokens
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int code = m / kSpan * 4 + j;
          if constexpr (kHalves) {
            const uint2 half = look_up_8(table, centroid_offset<Channels, Bits>(codes.words, code, lane));
            tokens[j].pairs[0] = half.x;
            tokens[j].pairs[1] = half.y;
          } else {
            tokens[j] = look_up_centroid<Channels, Bits>(table, codes.words, code, lane);
          }
        }
#pragma unroll
        for (int i = 0; i < kSpan; ++i)
          of_tile.multiply(low_halves(tokens[0].pairs[i], tokens[1].pairs[i]),
                           high_halves(tokens[0].pairs[i], tokens[1].pairs[i]),
                           low_halves(tokens[2].pairs[i], tokens[3].pairs[i]),
                           high_halves(tokens[2].pairs[i], tokens[3].pairs[i]), m + i, out);
      }
    }
  }

  static __device__ __forceinline__ void finish(const DecodeArgs&, float (&)[D / 16][4], const float (&)[2]) {
  }
};

template <int KeyChannels, int KeyBits, int ValueChannels, int ValueBits, int D, Gains Gain>
struct VectorStrips<VectorPair<KeyChannels, KeyBits, ValueChannels, ValueBits, D, Gain>, D>
    : VectorPair<KeyChannels, KeyBits, ValueChannels, ValueBits, D, Gain> {
  static constexpr int kMixedParts = 3;
  using Pair = VectorPair<KeyChannels, KeyBits, ValueChannels, ValueBits, D, Gain>;
  using Key = VectorKeyStrips<KeyChannels, KeyBits, D, Gain>;
  using Value = VectorValueStrips<ValueChannels, ValueBits, D, Gain, Pair::KeyTable::kBytes>;
};

}  // namespace kvant::cuda
