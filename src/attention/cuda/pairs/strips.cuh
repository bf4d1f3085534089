// What pairs share whose pages' decoding is shared by warps (shared_decoding.cuh).
#pragma once

#include "attention/cuda/decode/shared_decoding.cuh"
#include "attention/cuda/pairs/mask_codes.cuh"

namespace kvant::cuda {

// Products of all columns with one number for each channel: 16 columns are the rows of the A operand, and all
// columns of the other are alike.
template <int Sets>
struct ColumnSums {
  float of_pair[Sets / 2][4] = {};

  // q: SharedQueries::rows; x, y: the numbers of the lane's four channels.
  __device__ __forceinline__ void add(int pair, const uint4& q, std::uint32_t x, std::uint32_t y) {
    mma_f16(of_pair[pair], q.x, q.y, q.z, q.w, x, y);
  }
  // That of column 2t + h of a set.
  __device__ __forceinline__ float of(int set, int h, int lane) const {
    return __shfl_sync(~0U, of_pair[set / 2][set % 2 * 2], (lane % 4 * 2 + h) * 4);
  }
};

// Calls visit(m, a0, a1, a2, a3) for fragments (k, first_tile + m) of codes of 4 or 2 bits, m < Tiles;
// first_tile: a multiple of Tiles.
template <int Bits, int MTiles, int Tiles, class Visit>
__device__ __forceinline__ void visit_strip(const unsigned char* codes, int k, int first_tile, int lane,
                                            const Visit& visit) {
  constexpr int kWords = Tiles * Bits / 4;
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
  const int first = first_tile * Bits / 4;  // word, of a contraction tile's
  const unsigned char* at =
      codes + (k * (MTiles * Bits / 16) + first / 4) * (kLanes * 16) + lane * 16 + first % 4 * 4;
  std::uint32_t words[kWords];
  if constexpr (kWords == 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(at);
    words[0] = four.x;
    words[1] = four.y;
    words[2] = four.z;
    words[3] = four.w;
  } else if constexpr (kWords == 2) {
    const uint2 two = *reinterpret_cast<const uint2*>(at);
    words[0] = two.x;
    words[1] = two.y;
  } else {
    words[0] = *reinterpret_cast<const std::uint32_t*>(at);
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) visit_word<Bits>(words[i], i * (4 / Bits), visit);
}

// Tokens whose weights are multiplied by half-precision numbers at kFactorsAt of a page, which aren't
// negative. Where these are so large that products would be beyond half precision, all of the page's are
// divided by `unit`. Those at kAddendsAt, if it is not 0, are summed up, times the weights.
template <int Tiles, int kFactorsAt, int kAddendsAt>
struct ScaledTokens {
  ParametersOf<Tiles> factors, addends_of;
  float unit;

  __device__ __forceinline__ ScaledTokens(const DecodeArgs&, const unsigned char*, const unsigned char* page,
                                          int first_tile, int lane)
      : factors(page + kFactorsAt + first_tile * 32, lane) {
    if constexpr (kAddendsAt > 0) addends_of = {page + kAddendsAt + first_tile * 32, lane};
    // Of the whole page, as warps agree on it without meeting: that any is 256 or more.
    constexpr std::uint32_t k256 = 0x5c00;
    constexpr std::uint32_t kToSign = (0x8000 - k256) * 0x00010001U;
    const uint2 four = reinterpret_cast<const uint2*>(page + kFactorsAt)[lane];
    const bool large = __any_sync(~0U, ((max_u16x2(four.x, four.y) + kToSign) & 0x80008000U) != 0) != 0;
    unit = large ? kLargestSharedWeight : 1;
    if (large) factors.multiply(1 / kLargestSharedWeight);
  }
  __device__ __forceinline__ float inverse_unit() const { return 1 / kLargestSharedWeight; }
  // Of rows g and g + 8.
  __device__ __forceinline__ float2 addends(int tile) const { return addends_of.floats(tile); }
  // Weights of two columns, of row g + 8 * half.
  __device__ __forceinline__ std::uint32_t multiply(int tile, int half, float first, float second) const {
    return multiply_half2(pack_half2(first, second),
                          __byte_perm(factors.pair(tile), 0, half == 0 ? 0x1010 : 0x3232));
  }
};

}  // namespace kvant::cuda
