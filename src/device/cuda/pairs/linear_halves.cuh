// Attends to keys ch4g128 and values tok4g128 with heads of 256 channels, by halves of pages
// (page_halves.cuh). The arithmetic is the same as in linear.cuh, but the registers hold fewer numbers.
#pragma once

#include "device/cuda/pairs/linear.cuh"
#include "device/cuda/pairs/page_halves.cuh"
#include "device/cuda/pairs/progressive.cuh"

namespace kvant::cuda {

// Works like ChannelKey, but multiplies queries by scales again for each contraction tile, because the
// registers have no room for all scaled queries.
struct ChannelKeyHalf {
  static constexpr int kCodes = kPageTokens * kWideDim / 2;
  static constexpr int kPageBytes = kCodes + 4 * kWideDim;

  static __device__ __forceinline__ void score(const DecodeArgs&, const unsigned char* kept_query,
                                               const unsigned char* page, const Query<kWideDim>& query,
                                               int lane, HalfScores& s) {
    const auto* scales = reinterpret_cast<const uint2*>(page + kCodes + lane % 4 * (kWideDim / 2));
    const auto* zeros =
        reinterpret_cast<const uint2*>(page + kCodes + 2 * kWideDim + lane % 4 * (kWideDim / 2));
    const unsigned char* codes = key_codes_of_half(page);
    const KeptQuery<kWideDim> kept(kept_query, lane);
    clear(s);
    float zero[4] = {};
#pragma unroll
    for (int k = 0; k < kWideDim / 16; ++k) {
      const uint2 scale = scales[k];
      const uint2 z = zeros[k];
      const uint2 q = kept[k];
      const std::uint32_t q0 = multiply_half2(q.x, scale.x);
      const std::uint32_t q1 = multiply_half2(q.y, scale.y);
      mma_f16(zero, z.x, z.x, z.y, z.y, q.x, q.y);
      for_each_fragment_of_block<4>(codes, lane, k, 0, [&](int m, auto a0, auto a1, auto a2, auto a3) {
        mma_f16(s[m], a0, a1, a2, a3, q0, q1);
      });
    }
    zero[0] *= query.factor[0];
    zero[1] *= query.factor[1];
#pragma unroll
    for (int m = 0; m < kHalfTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[m][i] = fmaf(s[m][i], query.factor[i & 1] * code_unit<4>(m, i / 2), zero[i & 1]);
    }
  }
};

// Works like TokenValue, with two grids per token: one for the first 128 channels, which are the rows with g
// < 4, and one for the other channels. Each fragment is multiplied by the weights of both grids. For each
// grid, the rows of the other grid are zeros.
struct TokenValueHalf {
  static constexpr int kGrids = 2;
  static constexpr int kCodes = kPageTokens * kWideDim / 2;
  static constexpr int kPageBytes = kCodes + 4 * kGrids * kPageTokens;

  struct State {
    float zero[kGrids][2] = {};  // sums of p zero over this lane's tokens, for heads 2t and 2t + 1
    __device__ __forceinline__ void scale(int h, float factor) {
      zero[0][h] *= factor;
      zero[1][h] *= factor;
    }
  };

  // Holds the scales or the zeros of this lane's tokens.
  struct Parameters {
    ParametersOf<kHalfTiles> grids[kGrids];

    __device__ __forceinline__ Parameters(const unsigned char* of_page, int lane) {
#pragma unroll
      for (int i = 0; i < kHalfTiles / 2; ++i) {
        const int token = half_of_page() * kHalfTokens + i * 32 + lane / 4 * 4;
        const uint4 four = *reinterpret_cast<const uint4*>(of_page + 2 * kGrids * token);
        grids[0].packed[i] = {__byte_perm(four.x, four.y, 0x5410), __byte_perm(four.z, four.w, 0x5410)};
        grids[1].packed[i] = {__byte_perm(four.x, four.y, 0x7632), __byte_perm(four.z, four.w, 0x7632)};
      }
    }
  };

  static __device__ __forceinline__ void mix(const DecodeArgs&, const unsigned char*,
                                             const unsigned char* page, const HalfScores& p, int lane,
                                             float (&out)[kWideDim / 16][4], State& state) {
    const Parameters zeros(page + kCodes + 2 * kGrids * kPageTokens, lane);
#pragma unroll
    for (int grid = 0; grid < kGrids; ++grid) {
#pragma unroll
      for (int tile = 0; tile < kHalfTiles; ++tile) {
        const float2 zero = zeros.grids[grid].floats(tile);
        state.zero[grid][0] += p[tile][0] * zero.x + p[tile][2] * zero.y;
        state.zero[grid][1] += p[tile][1] * zero.x + p[tile][3] * zero.y;
      }
    }
    Parameters scales(page + kCodes, lane);
    const bool overflows = scales.grids[0].overflow_weights() || scales.grids[1].overflow_weights();
    if (overflows) {
      scales.grids[0].multiply(1 / kLargestWeight);
      scales.grids[1].multiply(1 / kLargestWeight);
      multiply(out, 1 / kLargestWeight);
    }
    const WeightsOf<kHalfTiles> first = pack_weights(p, scales.grids[0]);
    const WeightsOf<kHalfTiles> second = pack_weights(p, scales.grids[1]);
    const std::uint32_t of_first = lane / 4 < 4 ? ~0U : 0;
    for_each_value_fragment<kWideDim / 16>(page, lane, 0,
                                           [&](int k, int m, auto a0, auto a1, auto a2, auto a3) {
                                             mma_f16(out[m], a0 & of_first, a1 & of_first, a2 & of_first,
                                                     a3 & of_first, first.b[k][0], first.b[k][1]);
                                             mma_f16(out[m], a0 & ~of_first, a1 & ~of_first, a2 & ~of_first,
                                                     a3 & ~of_first, second.b[k][0], second.b[k][1]);
                                           });
    if (overflows) multiply(out, kLargestWeight);
  }

  static __device__ __forceinline__ void finish(const DecodeArgs&, float (&out)[kWideDim / 16][4],
                                                const State& state) {
    const bool is_first = threadIdx.x % kLanes / 4 < 4;
    float zero[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sums[kGrids] = {sum_over_tokens(state.zero[0][h]), sum_over_tokens(state.zero[1][h])};
      zero[h] = is_first ? sums[0] : sums[1];
    }
#pragma unroll
    for (int m = 0; m < kWideDim / 16; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[m][i] = fmaf(out[m][i], code_unit<4>(m, i / 2), zero[i & 1]);
    }
  }
};

struct LinearHalves : PageHalves {
  using Key = ChannelKeyHalf;
  using Value = TokenValueHalf;
};

}  // namespace kvant::cuda
