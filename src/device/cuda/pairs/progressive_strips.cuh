// Attends to keys and values prog<Bits> by warps that share the decoding of pages (shared_decoding.cuh). A
// warp's tokens belong to one block.
#pragma once

#include "device/cuda/decode/shared_decoding.cuh"
#include "device/cuda/pairs/progressive.cuh"
#include "device/cuda/pairs/strips.cuh"

namespace kvant::cuda {

inline constexpr int kBlockTiles = kTokenTiles / 2;  // tiles of tokens in each block

template <int Bits, int Tiles, class Visit>
__device__ __forceinline__ void visit_progressive(const unsigned char* codes, int k, int first_tile, int lane,
                                                  const Visit& visit) {
  if constexpr (Bits == 4 || Bits == 2) {
    visit_strip<Bits, kTokenTiles, Tiles>(codes, k, first_tile, lane, visit);
  } else {
    visit_plane_strip<Bits, Tiles>(codes, k, first_tile, lane, visit);
  }
}

template <int Bits, int D>
struct ProgressiveKeyStrips : QueriesInOrder<D> {
  static constexpr QueryOrder kOrder = QueryOrder::rows;

  template <int Sets, int Tiles>
  static __device__ __forceinline__ void score(const DecodeArgs&, const unsigned char*,
                                               const unsigned char* bytes, int first_tile,
                                               const SharedQueries<D, Sets, kOrder>& queries, int lane,
                                               SetSums<Sets, Tiles>& s) {
    const ProgressivePage<Bits, D> page{bytes};
    const int block = first_tile / kBlockTiles;
    const auto* steps = reinterpret_cast<const std::uint32_t*>(page.steps(block) + lane % 4 * (D / 4));
    const auto* zeros = reinterpret_cast<const std::uint32_t*>(page.zeros(block) + lane % 4 * (D / 4));
#pragma unroll
    for (auto& of_set : s) clear(of_set);
    ColumnSums<Sets> zero;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const std::uint32_t step = steps[k], z = zeros[k] ^ kSignBits;
      const std::uint32_t step0 = half2_from_bytes(step, Bytes::first, 0);
      const std::uint32_t step1 = half2_from_bytes(step, Bytes::last, 0);
      std::uint32_t b[Sets][2];
#pragma unroll
      for (int pair = 0; pair < Sets / 2; ++pair) {
        const uint4 q = queries.columns(k, pair, lane);
        zero.add(pair, queries.rows(k, pair, lane), half2_from_bytes(z, Bytes::first, 128),
                 half2_from_bytes(z, Bytes::last, 128));
        b[2 * pair][0] = multiply_half2(q.x, step0);
        b[2 * pair][1] = multiply_half2(q.y, step1);
        b[2 * pair + 1][0] = multiply_half2(q.z, step0);
        b[2 * pair + 1][1] = multiply_half2(q.w, step1);
      }
      visit_progressive<Bits, Tiles>(bytes, k, first_tile, lane,
                                     [&](int m, auto a0, auto a1, auto a2, auto a3) {
#pragma unroll
                                       for (int set = 0; set < Sets; ++set)
                                         mma_f16(s[set][m], a0, a1, a2, a3, b[set][0], b[set][1]);
                                     });
    }
    const float scale = page.scale(block);
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
      const float2 factors = queries.factors(set, lane);
      const float factor[2] = {factors.x * scale, factors.y * scale};
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

// BlockTokens serves the tokens of a warp, which belong to one block and share its scale. Half-precision
// numbers hold the weights times the scale.
struct BlockTokens {
  std::uint32_t scale;  // scale in both halves, divided by `unit`
  float unit;

  __device__ __forceinline__ explicit BlockTokens(const float (&scales)[2], int block) {
    // Products are half-precision numbers, and zeros multiply the weights of up to eight tokens. The unit
    // therefore brings the larger scale to about 1 if the scale is far from 1.
    const float largest = fmaxf(scales[0], scales[1]);
    const int exponent = min(max((__float_as_int(largest) >> 23) - 127, -100), 100);
    unit = exponent < -8 || exponent > 2 ? __int_as_float((127 + exponent) << 23) : 1;
    const float x = scales[block] * inverse_unit();
    scale = pack_half2(x, x);
  }
  __device__ __forceinline__ float inverse_unit() const {
    return __int_as_float((254 << 23) - __float_as_int(unit));
  }
  __device__ __forceinline__ std::uint32_t multiply(int, int, std::uint32_t weights) const {
    return multiply_half2(weights, scale);
  }
  __device__ __forceinline__ std::uint32_t of_total(float first, float second) const {
    return multiply_half2(pack_half2(first, second), scale);
  }
};

// Steps multiply the codes, which remain small integers. Zeros multiply the sums of a block's weights.
template <int Bits, int D>
struct ProgressiveValueStrips : TokensInOrder {
  static constexpr bool kHasAddends = false, kHasTotals = true;
  using Page = ProgressivePage<Bits, D>;

  template <int Tiles>
  struct Tokens : BlockTokens {
    __device__ __forceinline__ Tokens(const DecodeArgs&, const unsigned char*, const unsigned char* page,
                                      int first_tile, int)
        : BlockTokens({Page{page}.scale(0), Page{page}.scale(1)}, first_tile / kBlockTiles) {}
  };

  template <int Sets, int Tiles>
  static __device__ __forceinline__ void mix(const DecodeArgs&, const unsigned char*,
                                             const unsigned char* bytes, int first_tile,
                                             const SharedWeights<Sets, kHasTotals>& weights, int lane,
                                             SetSums<Sets, Tiles>& out) {
    const Page page{bytes};
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      std::uint32_t steps[Tiles][2];  // steps of rows g and g + 8
#pragma unroll
      for (int m = 0; m < Tiles; ++m) {
#pragma unroll
        for (int row = 0; row < 2; ++row)
          steps[m][row] =
              half2_from_bytes(twice(page.steps(block), first_tile, m, row, lane), Bytes::first, 0);
      }
#pragma unroll
      for (int k = block * kBlockTiles; k < (block + 1) * kBlockTiles; ++k) {
        const WeightsOfSets<Sets> of_tile(weights, k, lane);
        visit_progressive<Bits, Tiles>(
            bytes, k, first_tile, lane, [&](int m, auto a0, auto a1, auto a2, auto a3) {
              of_tile.multiply(multiply_half2(a0, steps[m][0]), multiply_half2(a1, steps[m][1]),
                               multiply_half2(a2, steps[m][0]), multiply_half2(a3, steps[m][1]), m, out);
            });
      }
    }
#pragma unroll
    for (int m = 0; m < Tiles; ++m) {
      std::uint32_t a[2][2];  // [block][row]
#pragma unroll
      for (int block = 0; block < 2; ++block) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const float unit = 1 / code_unit<Bits>(m, row);
          a[block][row] =
              multiply_half2(half2_from_bytes(twice(page.zeros(block), first_tile, m, row, lane) ^ kSignBits,
                                              Bytes::first, 128),
                             pack_half2(unit, unit));
        }
      }
      // The sums of a block's weights come from half of the warps. With two warps, a block's sums fill half
      // of the only tile. With four warps, they fill one of two tiles.
#pragma unroll
      for (int tile = 0; tile < Sets / 2; ++tile) {
        const int low = Sets == 2 ? 0 : tile, high = Sets == 2 ? 1 : tile;
        WeightsOfSets<Sets>(weights, kTokenTiles + tile, lane)
            .multiply(a[low][0], a[low][1], a[high][0], a[high][1], m, out);
      }
    }
  }

  static __device__ __forceinline__ void finish(const DecodeArgs&, float (&out)[D / 16][4],
                                                const float (&)[2]) {
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[m][i] *= code_unit<Bits>(m, i / 2);
    }
  }

 private:
  // Returns the number of a channel, row g + 8 * row of a tile, in both halves of a word.
  static __device__ __forceinline__ std::uint32_t twice(const unsigned char* of_channels, int first_tile,
                                                        int m, int row, int lane) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(of_channels + lane / 4 * (D / 8));
    return __byte_perm(words[(first_tile + m) / 2], 0, (m % 2 * 2 + row) * 0x1111);
  }
};

template <int Bits, int D>
struct ProgressiveStrips : NoTables {
  static constexpr int kMixedParts = 1;  // the tokens of a warp belong to one block
  static constexpr bool kSealed = true;
  using Key = ProgressiveKeyStrips<Bits, D>;
  using Value = ProgressiveValueStrips<Bits, D>;
};

}  // namespace kvant::cuda
