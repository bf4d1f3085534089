// Attends to keys and values prog<Bits> (TurboAttention). In these formats, blocks of 64 tokens become INT8
// with one scale, and then 2 to 5 bits per channel with integer steps and zeros. The decoded integers lie
// within +-127, so they need no clamp here. With 4 bits a step is at most 16. A decoded integer exceeds the
// block's largest integer, 119, by at most half a step. With 5 bits the excess is smaller. With 2 and 3 bits
// the excess is at most 2 and 6.
#pragma once

#include "device/cuda/pairs/linear.cuh"

namespace kvant::cuda {

template <int Bits, int D>
struct ProgressivePage {
  static constexpr int kCodes = kPageTokens * D * Bits / 8;
  static constexpr int kPageBytes = round_up_16(kCodes + 4 * D + 8);
  const unsigned char* page;
  __device__ __forceinline__ const unsigned char* steps(int block) const { return page + kCodes + block * D; }
  __device__ __forceinline__ const unsigned char* zeros(int block) const { return steps(2 + block); }
  __device__ __forceinline__ float scale(int block) const {
    return *reinterpret_cast<const float*>(page + kCodes + 4 * D + 4 * block);
  }
};

// Calls visit(m_tile, a0, a1, a2, a3) for the fragments of k tile `k` and one block of tokens in a page of
// keys.
template <int Bits, class Visit>
__device__ __forceinline__ void for_each_fragment_of_block(const unsigned char* codes, int lane, int k,
                                                           int block, const Visit& visit) {
  if constexpr (Bits == 4) {
    const uint4 piece = reinterpret_cast<const uint4*>(codes)[(2 * k + block) * kLanes + lane];
    const std::uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) visit_word<4>(words[i], block * 4 + i, visit);
  } else if constexpr (kNarrow<Bits> > 0) {
    visit_half_run<Bits>(codes, k, block, lane, [&](int i, auto a0, auto a1, auto a2, auto a3) {
      visit(block * 4 + i, a0, a1, a2, a3);
    });
  } else {
    const uint2 half = reinterpret_cast<const uint2*>(codes)[(k * kLanes + lane) * 2 + block];
    visit_word<2>(half.x, block * 4, visit);
    visit_word<2>(half.y, block * 4 + 2, visit);
  }
}

// Adds the scores of a block's tokens to the four tiles of s from 4 * `place` on. `place` must be a
// compile-time constant. `place` may be 0 if `codes` points to the codes of the block. fragments[k] is
// fragment k of the query.
template <int Bits, int D, int Tiles, class Fragments>
__device__ __forceinline__ void score_block(const unsigned char* bytes, const unsigned char* codes, int block,
                                            int place, const Fragments& fragments,
                                            const float (&query_factor)[2], int lane, float (&s)[Tiles][4]) {
  constexpr int kTiles = D / 16;
  const ProgressivePage<Bits, D> page{bytes};
  const auto* steps = reinterpret_cast<const std::uint32_t*>(page.steps(block) + lane % 4 * (D / 4));
  const auto* zeros = reinterpret_cast<const std::uint32_t*>(page.zeros(block) + lane % 4 * (D / 4));
  float zero[4] = {};
#pragma unroll
  for (int k = 0; k < kTiles; ++k) {
    const std::uint32_t step = steps[k];
    const uint2 b = fragments[k];
    const std::uint32_t q0 = multiply_half2(b.x, half2_from_bytes(step, Bytes::first, 0));
    const std::uint32_t q1 = multiply_half2(b.y, half2_from_bytes(step, Bytes::last, 0));
    const std::uint32_t z = zeros[k] ^ kSignBits;
    const std::uint32_t z0 = half2_from_bytes(z, Bytes::first, 128);
    const std::uint32_t z1 = half2_from_bytes(z, Bytes::last, 128);
    mma_f16(zero, z0, z0, z1, z1, b.x, b.y);
    for_each_fragment_of_block<Bits>(codes, lane, k, place, [&](int m, auto a0, auto a1, auto a2, auto a3) {
      mma_f16(s[m], a0, a1, a2, a3, q0, q1);
    });
  }
  const float scale = page.scale(block);
  const float factor[2] = {query_factor[0] * scale, query_factor[1] * scale};
#pragma unroll
  for (int m = place * 4; m < place * 4 + 4; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      s[m][i] = fmaf(s[m][i], factor[i & 1] * code_unit<Bits>(m, i / 2), zero[i & 1] * factor[i & 1]);
  }
}

template <int Bits, int D>
struct ProgressiveKey {
  static constexpr int kPageBytes = ProgressivePage<Bits, D>::kPageBytes;

  static __device__ __forceinline__ void score(const DecodeArgs&, const unsigned char*,
                                               const unsigned char* bytes, const Query<D>& query, int lane,
                                               Scores& s) {
    clear(s);
#pragma unroll
    for (int block = 0; block < 2; ++block)
      score_block<Bits, D>(bytes, bytes, block, block, query, query.factor, lane, s);
  }
};

template <int Bits, int D>
struct ProgressiveValue {
  static constexpr int kPageBytes = ProgressivePage<Bits, D>::kPageBytes;
  using State = NoState;

  static __device__ __forceinline__ void mix(const DecodeArgs&, const unsigned char*,
                                             const unsigned char* bytes, const Scores& p, int lane,
                                             float (&out)[D / 16][4], State&) {
    constexpr int kMTiles = D / 16;
    const ProgressivePage<Bits, D> page{bytes};
    const Weights weights = pack_weights(p);
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      float sum[kMTiles][4];
      clear(sum);
      for_each_fragment<Bits, kMTiles>(bytes, lane, block * 4, block * 4 + 4,
                                       [&](int k, int m, auto a0, auto a1, auto a2, auto a3) {
                                         mma_f16(sum[m], a0, a1, a2, a3, weights.b[k][0], weights.b[k][1]);
                                       });
      const float scale = page.scale(block);
      float total[2] = {0, 0};
#pragma unroll
      for (int tile = block * 4; tile < block * 4 + 4; ++tile) {
        total[0] += p[tile][0] + p[tile][2];
        total[1] += p[tile][1] + p[tile][3];
      }
      total[0] = sum_over_tokens(total[0]) * scale;
      total[1] = sum_over_tokens(total[1]) * scale;
      // The channels of the lane are g * D/8 + 2 * m_tile + row.
      const auto* steps = reinterpret_cast<const std::uint32_t*>(page.steps(block) + lane / 4 * (D / 8));
      const auto* zeros = reinterpret_cast<const std::uint32_t*>(page.zeros(block) + lane / 4 * (D / 8));
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        const std::uint32_t step = steps[m / 2];
        const std::uint32_t zero = zeros[m / 2] ^ kSignBits;
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const float factor = float_from_byte(step, m % 2 * 2 + row, 0) * (scale * code_unit<Bits>(m, row));
          const float offset = float_from_byte(zero, m % 2 * 2 + row, 128);
#pragma unroll
          for (int h = 0; h < 2; ++h)
            out[m][2 * row + h] += fmaf(sum[m][2 * row + h], factor, total[h] * offset);
        }
      }
    }
  }

  static __device__ __forceinline__ void finish(const DecodeArgs&, float (&)[D / 16][4], const State&) {}
};

template <int Bits, int D>
struct ProgressiveStrips;  // defined in progressive_strips.cuh

template <int Bits, int D>
struct ProgressivePair : NoTables {
  using Strips = ProgressiveStrips<Bits, D>;
  static constexpr bool kSealed = true;
  static constexpr bool kHastensQueries = false;
  using Key = ProgressiveKey<Bits, D>;
  using Value = ProgressiveValue<Bits, D>;
};

template <int Bits, int D>
struct SasProgressivePair : ProgressivePair<Bits, D> {
  static constexpr SasUse kSas = SasUse::always;
};

}  // namespace kvant::cuda
