// Attends to keys and values prog4 with heads of 256 channels, by halves of pages (page_halves.cuh). A half
// is one of the page's blocks of 64 tokens.
#pragma once

#include "device/cuda/pairs/page_halves.cuh"
#include "device/cuda/pairs/progressive.cuh"

namespace kvant::cuda {

struct ProgressiveKeyHalf {
  static constexpr int kPageBytes = ProgressivePage<4, kWideDim>::kPageBytes;

  static __device__ __forceinline__ void score(const DecodeArgs&, const unsigned char* kept_query,
                                               const unsigned char* page, const Query<kWideDim>& query,
                                               int lane, HalfScores& s) {
    clear(s);
    score_block<4, kWideDim>(page, key_codes_of_half(page), half_of_page(), 0,
                             KeptQuery<kWideDim>(kept_query, lane), query.factor, lane, s);
  }
};

struct ProgressiveValueHalf {
  static constexpr int kPageBytes = ProgressivePage<4, kWideDim>::kPageBytes;
  using State = NoState;

  static __device__ __forceinline__ void mix(const DecodeArgs&, const unsigned char*,
                                             const unsigned char* bytes, const HalfScores& p, int lane,
                                             float (&out)[kWideDim / 16][4], State&) {
    // A pass over only kMTiles tiles limits the registers for the block's sums, because the registers also
    // hold all outputs.
    constexpr int kMTiles = 8;
    const int block = half_of_page();
    const ProgressivePage<4, kWideDim> page{bytes};
    const WeightsOf<kHalfTiles> weights = pack_weights(p);
    const float scale = page.scale(block);
    float total[2] = {0, 0};
#pragma unroll
    for (int tile = 0; tile < kHalfTiles; ++tile) {
      total[0] += p[tile][0] + p[tile][2];
      total[1] += p[tile][1] + p[tile][3];
    }
    total[0] = sum_over_tokens(total[0]) * scale;
    total[1] = sum_over_tokens(total[1]) * scale;
    // The channels of the lane are g * D/8 + 2 * m_tile + row.
    const auto* steps = reinterpret_cast<const std::uint32_t*>(page.steps(block) + lane / 4 * (kWideDim / 8));
    const auto* zeros = reinterpret_cast<const std::uint32_t*>(page.zeros(block) + lane / 4 * (kWideDim / 8));
#pragma unroll
    for (int first = 0; first < kWideDim / 16; first += kMTiles) {
      float sum[kMTiles][4];
      clear(sum);
      for_each_value_fragment<kMTiles>(
          bytes, lane, first, [&](int k, int m, auto a0, auto a1, auto a2, auto a3) {
            mma_f16(sum[m - first], a0, a1, a2, a3, weights.b[k][0], weights.b[k][1]);
          });
#pragma unroll
      for (int m = 0; m < kMTiles; ++m)
        add_tile(sum[m], steps[(first + m) / 2], zeros[(first + m) / 2] ^ kSignBits, m % 2, scale, total,
                 out[first + m]);
    }
  }

  static __device__ __forceinline__ void finish(const DecodeArgs&, float (&)[kWideDim / 16][4],
                                                const State&) {}

 private:
  // Adds the block's sums for one m tile to `out`. `step` and `zero` hold the parameters of two m tiles, and
  // `which` selects the first or the second tile.
  static __device__ __forceinline__ void add_tile(const float (&sum)[4], std::uint32_t step,
                                                  std::uint32_t zero, int which, float scale,
                                                  const float (&total)[2], float (&out)[4]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float factor = float_from_byte(step, which * 2 + row, 0) * (scale * code_unit<4>(0, row));
      const float offset = float_from_byte(zero, which * 2 + row, 128);
#pragma unroll
      for (int h = 0; h < 2; ++h) out[2 * row + h] += fmaf(sum[2 * row + h], factor, total[h] * offset);
    }
  }
};

struct ProgressiveHalves : PageHalves {
  using Key = ProgressiveKeyHalf;
  using Value = ProgressiveValueHalf;
};

}  // namespace kvant::cuda
