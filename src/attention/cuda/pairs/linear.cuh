// Keys ch<B>g128 and values tok<B>g128: uniform grids, channel-wise and token-wise.
#pragma once

#include "attention/cuda/pairs/mask_codes.cuh"

namespace kvant::cuda {

// Scales multiply the query once a page: q.k = sum (q scale) code + q.zero.
template <int Bits, int D>
struct ChannelKey {
  static constexpr int kCodes = kPageTokens * D * Bits / 8;
  static constexpr int kPageBytes = kCodes + 4 * D;

  static __device__ __forceinline__ void score(const DecodeArgs&, const unsigned char*,
                                               const unsigned char* page, const Query<D>& query, int lane,
                                               Scores& s) {
    constexpr int kTiles = D / 16;
    const auto* scales = reinterpret_cast<const uint4*>(page + kCodes + lane % 4 * (D / 2));
    const auto* zeros = reinterpret_cast<const uint4*>(page + kCodes + 2 * D + lane % 4 * (D / 2));
    std::uint32_t q[kTiles][2];
    float zero[4] = {};
#pragma unroll
    for (int k = 0; k < kTiles; k += 2) {
      const uint4 scale = scales[k / 2];
      q[k][0] = multiply_half2(query.b[k][0], scale.x);
      q[k][1] = multiply_half2(query.b[k][1], scale.y);
      q[k + 1][0] = multiply_half2(query.b[k + 1][0], scale.z);
      q[k + 1][1] = multiply_half2(query.b[k + 1][1], scale.w);
      const uint4 z = zeros[k / 2];
      mma_f16(zero, z.x, z.x, z.y, z.y, query.b[k][0], query.b[k][1]);
      mma_f16(zero, z.z, z.z, z.w, z.w, query.b[k + 1][0], query.b[k + 1][1]);
    }
    clear(s);
    for_each_fragment<Bits, kTokenTiles>(page, lane, 0, kTiles,
                                         [&](int k, int m, auto a0, auto a1, auto a2, auto a3) {
                                           mma_f16(s[m], a0, a1, a2, a3, q[k][0], q[k][1]);
                                         });
    zero[0] *= query.factor[0];
    zero[1] *= query.factor[1];
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[m][i] = fmaf(s[m][i], query.factor[i & 1] * code_unit<Bits>(m, i / 2), zero[i & 1]);
    }
  }
};

// Scales multiply the weights: sum p v = sum (p scale) code + sum p zero.
template <int Bits, int D>
struct TokenValue {
  static constexpr int kCodes = kPageTokens * D * Bits / 8;
  static constexpr int kPageBytes = kCodes + 4 * kPageTokens;

  struct State {
    float zero[2] = {0, 0};  // sum of p zero over this lane's tokens, of heads 2t and 2t + 1
    __device__ __forceinline__ void scale(int h, float factor) { zero[h] *= factor; }
  };

  static __device__ __forceinline__ void mix(const DecodeArgs&, const unsigned char*,
                                             const unsigned char* page, const Scores& p, int lane,
                                             float (&out)[D / 16][4], State& state) {
    const TokenParameters scales(page + kCodes, lane);
    const TokenParameters zeros(page + kCodes + 2 * kPageTokens, lane);
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) {
      const float2 zero = zeros.floats(tile);
      state.zero[0] += p[tile][0] * zero.x + p[tile][2] * zero.y;
      state.zero[1] += p[tile][1] * zero.x + p[tile][3] * zero.y;
    }
    add_weighted(p, scales, out, [&](const Weights& weights) {
      for_each_fragment<Bits, D / 16>(page, lane, 0, kTokenTiles,
                                      [&](int k, int m, auto a0, auto a1, auto a2, auto a3) {
                                        mma_f16(out[m], a0, a1, a2, a3, weights.b[k][0], weights.b[k][1]);
                                      });
    });
  }

  static __device__ __forceinline__ void finish(const DecodeArgs&, float (&out)[D / 16][4],
                                                const State& state) {
    const float zero[2] = {sum_over_tokens(state.zero[0]), sum_over_tokens(state.zero[1])};
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[m][i] = fmaf(out[m][i], code_unit<Bits>(m, i / 2), zero[i & 1]);
    }
  }
};

struct NoTables {
  static constexpr bool kTablesPerHead = false;
  static constexpr int kTableBytes = 0;
  static __device__ void build_tables(const DecodeArgs&, unsigned char*, int, int, int) {}
};

template <int KeyBits, int ValueBits, int D>
struct LinearPair : NoTables {
  static constexpr bool kSealed = true;
  using Key = ChannelKey<KeyBits, D>;
  using Value = TokenValue<ValueBits, D>;
};

// No sealed pages at all.
struct PlainPair : NoTables {
  static constexpr bool kSealed = false;
};

}  // namespace kvant::cuda
