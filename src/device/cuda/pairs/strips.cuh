// Defines helpers for the pairs in which warps share the decoding of pages (shared_decoding.cuh). A strip is
// the part of a page's codes that one warp decodes for all columns of queries.
#pragma once

#include "device/cuda/decode/shared_decoding.cuh"
#include "device/cuda/pairs/mask_codes.cuh"

namespace kvant::cuda {

// ColumnSums holds products of all columns of queries with one number per channel. The rows of the A operand
// are 16 columns of queries, and all columns of the B operand hold the numbers.
template <int Sets>
struct ColumnSums {
  float of_pair[Sets / 2][4] = {};

  // Adds the products of the queries `q`, which come from SharedQueries::rows(), with the numbers x and y of
  // the lane's four channels.
  __device__ __forceinline__ void add(int pair, const uint4& q, std::uint32_t x, std::uint32_t y) {
    mma_f16(of_pair[pair], q.x, q.y, q.z, q.w, x, y);
  }
  // Returns the product of column 2t + h of set `set`.
  __device__ __forceinline__ float of(int set, int h, int lane) const {
    return __shfl_sync(~0U, of_pair[set / 2][set % 2 * 2], (lane % 4 * 2 + h) * 4);
  }
};

// StripWords is a run of bits in a lane's stream of codes. A run begins at a multiple of its length.
// `first_bit` counts from bit `begin`, which is a compile-time constant.
template <int Bits>
struct StripWords {
  static constexpr int kWords = (Bits + 31) / 32;
  std::uint32_t words[kWords];

  __device__ __forceinline__ StripWords(const unsigned char* page, int begin, unsigned first_bit, int lane) {
    constexpr int kPieceBits = 128;
    const unsigned char* codes = page + begin / kPieceBits * (kLanes * 16);
    first_bit += begin % kPieceBits;
    const unsigned first = first_bit / 32;
    if constexpr (Bits % 128 == 0) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(word(codes, first + i, lane));
        words[i] = four.x;
        words[i + 1] = four.y;
        words[i + 2] = four.z;
        words[i + 3] = four.w;
      }
    } else if constexpr (Bits % 64 == 0) {
#pragma unroll
      for (int i = 0; i < kWords; i += 2) {
        const uint2 two = *reinterpret_cast<const uint2*>(word(codes, first + i, lane));
        words[i] = two.x;
        words[i + 1] = two.y;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i)
        words[i] = *reinterpret_cast<const std::uint32_t*>(word(codes, first + i, lane));
    }
    if constexpr (Bits % 32 != 0) {
      // A run that begins within a word still lies in kWords words.
      static_assert(Bits % 32 == 16 || Bits == 40);
      const int shift = static_cast<int>(first_bit % 32);
#pragma unroll
      for (int i = 0; i < kWords; ++i)
        words[i] = __funnelshift_r(words[i], i + 1 < kWords ? words[i + 1] : 0, shift);
    }
  }

 private:
  static __device__ __forceinline__ const unsigned char* word(const unsigned char* codes, unsigned at,
                                                              int lane) {
    return codes + (at / 4 * kLanes + lane) * 16 + at % 4 * 4;
  }
};

// Calls visit(m, a0, a1, a2, a3) for the fragments (k, first_tile + m) of 4-bit or 2-bit codes with m <
// Tiles. first_tile must be a multiple of Tiles.
template <int Bits, int MTiles, int Tiles, class Visit>
__device__ __forceinline__ void visit_strip(const unsigned char* codes, int k, int first_tile, int lane,
                                            const Visit& visit) {
  const StripWords<Tiles * 8 * Bits> strip(codes, k * MTiles * 8 * Bits, first_tile * 8 * Bits, lane);
#pragma unroll
  for (int i = 0; i < strip.kWords; ++i) visit_word<Bits>(strip.words[i], i * (4 / Bits), visit);
}

// Calls visit(m, a0, a1, a2, a3) as visit_strip() does, for 3-bit and 5-bit numbers, whose narrower plane has
// one bit. Heads must have 128 channels.
template <int Bits, int Tiles, class Visit>
__device__ __forceinline__ void visit_plane_strip(const unsigned char* codes, int k, int first_tile, int lane,
                                                  const Visit& visit) {
  static_assert(kNarrow<Bits> == 1 && Tiles <= 4);
  constexpr int kLowWords = Tiles * kWide<Bits> / 4;
  constexpr int kTogether = kLowWords == 1 ? 1 : 2;
  const int first = k * 2 * Bits;  // first word of the run
  std::uint32_t low[kLowWords];
#pragma unroll
  for (int i = 0; i < kLowWords; i += kTogether) {
    const StripWords<kTogether * 32> some(codes, (first + i) * 32, first_tile * kWide<Bits> * 8, lane);
#pragma unroll
    for (int j = 0; j < kTogether; ++j) low[i + j] = some.words[j];
  }
  StripWords<32> high(codes, (first + 2 * kWide<Bits>)*32, first_tile / 4 * 32, lane);
  if constexpr (Tiles == 2) high.words[0] >>= first_tile % 4 * 2;
  visit_planes<Bits, Tiles>(low, high.words, visit);
}

// Holds the weights of a tile's tokens for all columns of queries, as the B operand.
template <int Sets>
struct WeightsOfSets {
  std::uint32_t b[Sets / 2][4];

  template <bool Totals>
  __device__ __forceinline__ WeightsOfSets(const SharedWeights<Sets, Totals>& weights, int tile, int lane) {
#pragma unroll
    for (int pair = 0; pair < Sets / 2; ++pair) weights.load(tile, pair, lane, b[pair]);
  }
  // Adds the products of the weights with a fragment of values to the sums of a tile of channels.
  template <int Tiles>
  __device__ __forceinline__ void multiply(std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                           std::uint32_t a3, int m, SetSums<Sets, Tiles>& out) const {
#pragma unroll
    for (int set = 0; set < Sets; ++set)
      mma_f16(out[set][m], a0, a1, a2, a3, b[set / 2][set % 2 * 2], b[set / 2][set % 2 * 2 + 1]);
  }
};

// QueriesInOrder is the base of keys whose fragments have channels in the order of queries.
template <int D>
struct QueriesInOrder {
  static constexpr bool kNeedsSums = false;

  static __device__ __forceinline__ const Query<D>& arrange(const Query<D>& query) { return query; }
  static __device__ __forceinline__ const Query<D>& rearrange(const Query<D>& query) { return query; }
};

// TokensInOrder is the base of values whose contraction tiles have the tokens of the score tiles in the same
// rows.
struct TokensInOrder {
  static __device__ __forceinline__ TokenRow row_of(int first_tile, int tile, int half, int lane) {
    return {first_tile + tile, half, lane / 4};
  }
};

// PlainTokens serves the tokens of formats that have no factor for each token.
struct PlainTokens {
  static constexpr float unit = 1;

  __device__ __forceinline__ PlainTokens(const DecodeArgs&, const unsigned char*, const unsigned char*, int,
                                         int) {}
  __device__ __forceinline__ float inverse_unit() const { return 1; }
  __device__ __forceinline__ std::uint32_t multiply(int, int, std::uint32_t weights) const { return weights; }
};

// Multiplies the weights of tokens by the non-negative half-precision numbers at kFactorsAt of a page. If
// products could exceed half precision, all products of the page are divided by `unit`. If kAddendsAt is not
// 0, the weights also multiply the numbers at kAddendsAt, and these products are summed.
template <int Tiles, int kFactorsAt, int kAddendsAt>
struct ScaledTokens {
  ParametersOf<Tiles> factors, addends_of;
  float unit;

  __device__ __forceinline__ ScaledTokens(const DecodeArgs&, const unsigned char*, const unsigned char* page,
                                          int first_tile, int lane)
      : factors(page + kFactorsAt + first_tile * 32, lane) {
    if constexpr (kAddendsAt > 0) addends_of = {page + kAddendsAt + first_tile * 32, lane};
    // The unit depends on whether any factor of the whole page is 256 or more, so all warps choose the same
    // unit without a barrier.
    constexpr std::uint32_t k256 = 0x5c00;
    constexpr std::uint32_t kToSign = (0x8000 - k256) * 0x00010001U;
    const uint2 four = reinterpret_cast<const uint2*>(page + kFactorsAt)[lane];
    const bool large = __any_sync(~0U, ((max_u16x2(four.x, four.y) + kToSign) & 0x80008000U) != 0) != 0;
    unit = large ? kLargestSharedWeight : 1;
    if (large) factors.multiply(1 / kLargestSharedWeight);
  }
  __device__ __forceinline__ float inverse_unit() const { return 1 / kLargestSharedWeight; }
  // Returns the addends of rows g and g + 8.
  __device__ __forceinline__ float2 addends(int tile) const { return addends_of.floats(tile); }
  // Multiplies the weights of two columns by the factor of row g + 8 * half.
  __device__ __forceinline__ std::uint32_t multiply(int tile, int half, std::uint32_t weights) const {
    return multiply_half2(weights, __byte_perm(factors.pair(tile), 0, half == 0 ? 0x1010 : 0x3232));
  }
};

}  // namespace kvant::cuda
