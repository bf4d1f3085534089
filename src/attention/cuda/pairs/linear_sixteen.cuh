// Keys ch<B>g128 and values tok<B>g128 for several queries of a sequence: a warp has sixteen columns, two
// sets of eight, so that codes are lifted out of their words once for twice as many products.
#pragma once

#include "attention/cuda/pairs/linear.cuh"

namespace kvant::cuda {

// As ChannelKey. Arrays: of the warp's sets of columns.
template <int Bits, int D>
struct ChannelKeyOfSets {
  using One = ChannelKey<Bits, D>;
  static constexpr int kPageBytes = One::kPageBytes;

  template <int Sets>
  static __device__ __forceinline__ void score(const DecodeArgs&, const unsigned char*,
                                               const unsigned char* page, const Query<D> (&query)[Sets],
                                               int lane, float (&s)[Sets][kTokenTiles][4]) {
    constexpr int kTiles = D / 16;
    const auto* scales = reinterpret_cast<const uint4*>(page + One::kCodes + lane % 4 * (D / 2));
    const auto* zeros = reinterpret_cast<const uint4*>(page + One::kCodes + 2 * D + lane % 4 * (D / 2));
    std::uint32_t q[Sets][kTiles][2];
    float zero[Sets][4] = {};
#pragma unroll
    for (int k = 0; k < kTiles; k += 2) {
      const uint4 scale = scales[k / 2], z = zeros[k / 2];
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        const auto& b = query[set].b;
        q[set][k][0] = multiply_half2(b[k][0], scale.x);
        q[set][k][1] = multiply_half2(b[k][1], scale.y);
        q[set][k + 1][0] = multiply_half2(b[k + 1][0], scale.z);
        q[set][k + 1][1] = multiply_half2(b[k + 1][1], scale.w);
        mma_f16(zero[set], z.x, z.x, z.y, z.y, b[k][0], b[k][1]);
        mma_f16(zero[set], z.z, z.z, z.w, z.w, b[k + 1][0], b[k + 1][1]);
      }
    }
#pragma unroll
    for (int set = 0; set < Sets; ++set) clear(s[set]);
    for_each_fragment<Bits, kTokenTiles>(page, lane, 0, kTiles,
                                         [&](int k, int m, auto a0, auto a1, auto a2, auto a3) {
#pragma unroll
                                           for (int set = 0; set < Sets; ++set)
                                             mma_f16(s[set][m], a0, a1, a2, a3, q[set][k][0], q[set][k][1]);
                                         });
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
      const float(&factor)[2] = query[set].factor;
      const float of_zeros[2] = {zero[set][0] * factor[0], zero[set][1] * factor[1]};
#pragma unroll
      for (int m = 0; m < kTokenTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          s[set][m][i] = fmaf(s[set][m][i], factor[i & 1] * code_unit<Bits>(m, i / 2), of_zeros[i & 1]);
      }
    }
  }
};

// As TokenValue.
template <int Bits, int D>
struct TokenValueOfSets {
  using One = TokenValue<Bits, D>;
  using State = typename One::State;
  static constexpr int kPageBytes = One::kPageBytes;

  template <int Sets>
  static __device__ __forceinline__ void mix(const DecodeArgs&, const unsigned char*,
                                             const unsigned char* page,
                                             const float (&p)[Sets][kTokenTiles][4], int lane,
                                             Accumulator<D> (&acc)[Sets], State (&state)[Sets]) {
    TokenParameters scales(page + One::kCodes, lane);
    const TokenParameters zeros(page + One::kCodes + 2 * kPageTokens, lane);
    const bool overflows = scales.overflow_weights();  // see add_weighted
    if (overflows) scales.multiply(1 / kLargestWeight);
    Weights weights[Sets];
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
#pragma unroll
      for (int tile = 0; tile < kTokenTiles; ++tile) {
        const float2 zero = zeros.floats(tile);
        state[set].zero[0] += p[set][tile][0] * zero.x + p[set][tile][2] * zero.y;
        state[set].zero[1] += p[set][tile][1] * zero.x + p[set][tile][3] * zero.y;
      }
      weights[set] = pack_weights(p[set], scales);
      if (overflows) multiply(acc[set].out, 1 / kLargestWeight);
    }
    for_each_fragment<Bits, D / 16>(
        page, lane, 0, kTokenTiles, [&](int k, int m, auto a0, auto a1, auto a2, auto a3) {
#pragma unroll
          for (int set = 0; set < Sets; ++set)
            mma_f16(acc[set].out[m], a0, a1, a2, a3, weights[set].b[k][0], weights[set].b[k][1]);
        });
    if (!overflows) return;
#pragma unroll
    for (int set = 0; set < Sets; ++set) multiply(acc[set].out, kLargestWeight);
  }

  static __device__ __forceinline__ void finish(const DecodeArgs& args, float (&out)[D / 16][4],
                                                const State& state) {
    One::finish(args, out, state);
  }
};

// Sums of sixteen columns take more registers than twelve warps have: with seven consumers and the copying
// warp, two on each scheduler, each may have 255.
template <int KeyBits, int ValueBits, int D>
struct LinearPairOfSixteen : NoTables {
  static constexpr bool kSealed = true;
  static constexpr bool kTakesSets = true;
  static constexpr int kMaxGroup = 2 * kPaddedGroup;
  static constexpr int kMaxWarps = 7;
  using Key = ChannelKeyOfSets<KeyBits, D>;
  using Value = TokenValueOfSets<ValueBits, D>;
};

}  // namespace kvant::cuda
