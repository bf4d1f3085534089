// Attends to keys ch<B>g128 and values tok<B>g128, which have uniform grids by channel and by token. Scales
// multiply queries and weights instead of codes, so masked codes are operands of products without conversion.
#pragma once

#include "device/cuda/pairs/mask_codes.cuh"

namespace kvant::cuda {

// Calls visit(k_tile, m_tile, a0, a1, a2, a3) for the key fragments in a warp's part of a page that PageWarps
// warps share. m_tile counts from the first tile of the part.
template <int Bits, int D, int PageWarps, class Visit>
__device__ __forceinline__ void for_each_key_fragment(const unsigned char* codes, int lane,
                                                      const Visit& visit) {
  if constexpr (PageWarps == 1) {
    for_each_fragment<Bits, kTokenTiles>(codes, lane, 0, D / 16, visit);
  } else {
    // The part has two tiles of tokens, which are two words of a lane with 4-bit codes and one word with
    // 2-bit codes.
    static_assert(PageWarps == 4 && (Bits == 4 || Bits == 2));
    constexpr int kWords = Bits / 2;
    const int first = part_of_page<PageWarps>() * kWords;
    const unsigned char* of_lane = codes + first / 4 * (kLanes * 16) + lane * 16 + first % 4 * 4;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const unsigned char* at = of_lane + k * (kTokenTiles * Bits / 16) * (kLanes * 16);
      std::uint32_t words[kWords];
      if constexpr (kWords == 2) {
        const uint2 two = *reinterpret_cast<const uint2*>(at);
        words[0] = two.x;
        words[1] = two.y;
      } else {
        words[0] = *reinterpret_cast<const std::uint32_t*>(at);
      }
#pragma unroll
      for (int i = 0; i < kWords; ++i)
        visit_word<Bits>(words[i], i,
                         [&](int m, auto a0, auto a1, auto a2, auto a3) { visit(k, m, a0, a1, a2, a3); });
    }
  }
}

// ChannelKey scores keys with a grid per channel. Scales multiply the query once per page, because q.k = sum
// (q scale) code + q.zero.
template <int Bits, int D, int PageWarps = 1>
struct ChannelKey {
  static constexpr int kCodes = kPageTokens * D * Bits / 8;
  static constexpr int kPageBytes = kCodes + 4 * D;
  static constexpr int kWarpTiles = kTilesOfWarp<PageWarps>;

  static __device__ __forceinline__ void score(const DecodeArgs&, const unsigned char*,
                                               const unsigned char* page, const Query<D>& query, int lane,
                                               float (&s)[kWarpTiles][4]) {
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
    for_each_key_fragment<Bits, D, PageWarps>(page, lane,
                                              [&](int k, int m, auto a0, auto a1, auto a2, auto a3) {
                                                mma_f16(s[m], a0, a1, a2, a3, q[k][0], q[k][1]);
                                              });
    zero[0] *= query.factor[0];
    zero[1] *= query.factor[1];
#pragma unroll
    for (int m = 0; m < kWarpTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[m][i] = fmaf(s[m][i], query.factor[i & 1] * code_unit<Bits>(m, i / 2), zero[i & 1]);
    }
  }
};

// TokenValue adds up values with a grid per token. Scales multiply the weights, because sum p v = sum (p
// scale) code + sum p zero.
template <int Bits, int D, int PageWarps = 1>
struct TokenValue {
  static constexpr int kCodes = kPageTokens * D * Bits / 8;
  static constexpr int kPageBytes = kCodes + 4 * kPageTokens;
  static constexpr int kWarpTiles = kTilesOfWarp<PageWarps>;
  static_assert(kCodes / PageWarps % (16 * kLanes) == 0, "the codes of a warp's tokens fill whole pieces");

  struct State {
    float zero[2] = {0, 0};  // sum of p zero over this lane's tokens, for heads 2t and 2t + 1
    __device__ __forceinline__ void scale(int h, float factor) { zero[h] *= factor; }
  };

  static __device__ __forceinline__ void mix(const DecodeArgs&, const unsigned char*,
                                             const unsigned char* page, const float (&p)[kWarpTiles][4],
                                             int lane, float (&out)[D / 16][4], State& state) {
    const int part = part_of_page<PageWarps>();
    const unsigned char* parameters = page + kCodes + part * (kPageTokens / PageWarps * 2);
    const ParametersOf<kWarpTiles> scales(parameters, lane);
    const ParametersOf<kWarpTiles> zeros(parameters + 2 * kPageTokens, lane);
#pragma unroll
    for (int tile = 0; tile < kWarpTiles; ++tile) {
      const float2 zero = zeros.floats(tile);
      state.zero[0] += p[tile][0] * zero.x + p[tile][2] * zero.y;
      state.zero[1] += p[tile][1] * zero.x + p[tile][3] * zero.y;
    }
    add_weighted(p, scales, out, [&](const auto& weights) {
      for_each_fragment<Bits, D / 16>(page + part * (kCodes / PageWarps), lane, 0, kWarpTiles,
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
struct LinearStrips;  // defined in linear_strips.cuh
template <int KeyBits, int ValueBits, int D>
struct LinearGroups;  // defined in linear_groups.cuh

// LinearPair attends to keys ch<KeyBits> and values tok<ValueBits> with heads of D channels. PageWarps warps
// share each page.
template <int KeyBits, int ValueBits, int D, int PageWarps = 1>
struct LinearPair : NoTables {
  using Strips = LinearStrips<KeyBits, ValueBits, D>;
  using Groups = LinearGroups<KeyBits, ValueBits, D>;
  using OfShort = LinearPair<KeyBits, ValueBits, D, 4>;
  static constexpr bool kSealed = true;
  static constexpr int kPageWarps = PageWarps;
  using Key = ChannelKey<KeyBits, D, PageWarps>;
  using Value = TokenValue<ValueBits, D, PageWarps>;
};

// PlainPair serves caches without any sealed page.
struct PlainPair : NoTables {
  static constexpr bool kSealed = false;
};

}  // namespace kvant::cuda
