// Packs weights as the B operand of the products with values, and has other helpers that all formats of
// values share. Weights are half-precision numbers, so the code checks or divides factors of tokens before
// they multiply weights.
#pragma once

#include "device/cuda/decode/decode_kernel.cuh"

namespace kvant::cuda {

template <int Tiles>
struct WeightsOf {
  std::uint32_t b[Tiles][2];  // operand of the contraction over a tile's tokens
};
using Weights = WeightsOf<kTokenTiles>;

template <int Tiles>
__device__ __forceinline__ WeightsOf<Tiles> pack_weights(const float (&p)[Tiles][4]) {
  WeightsOf<Tiles> weights;
#pragma unroll
  for (int tile = 0; tile < Tiles; ++tile) {
    weights.b[tile][0] = transpose_8x8(pack_half2(p[tile][0], p[tile][1]));
    weights.b[tile][1] = transpose_8x8(pack_half2(p[tile][2], p[tile][3]));
  }
  return weights;
}

// Holds one half-precision parameter for each of this lane's tokens. Rows g and g + 8 of tile 2 i, and then
// rows g and g + 8 of tile 2 i + 1, are four neighbouring tokens.
template <int Tiles>
struct ParametersOf {
  uint2 packed[Tiles / 2];

  ParametersOf() = default;
  __device__ __forceinline__ ParametersOf(const unsigned char* parameters, int lane) {
#pragma unroll
    for (int i = 0; i < Tiles / 2; ++i)
      packed[i] = *reinterpret_cast<const uint2*>(parameters + 2 * (i * 32 + lane / 4 * 4));
  }
  // Returns the parameters of rows g and g + 8.
  __device__ __forceinline__ std::uint32_t pair(int tile) const {
    return tile % 2 == 0 ? packed[tile / 2].x : packed[tile / 2].y;
  }
  __device__ __forceinline__ float2 floats(int tile) const {
    return unpack_half2(pair(tile));
  }
  // Returns whether the largest weight times any of the page's non-negative parameters could exceed half
  // precision. All lanes get the same result.
  __device__ __forceinline__ bool overflow_weights() const {
    static_assert(kWeightBits == 4);
    constexpr std::uint32_t k4096 = 0x6c00;  // the largest number below 4096 is 4094 = 65504 / 2^kWeightBits
    constexpr std::uint32_t kToSign = (0x8000 - k4096) * 0x00010001U;
    std::uint32_t largest = max_u16x2(packed[0].x, packed[0].y);
#pragma unroll
    for (int i = 1; i < Tiles / 2; ++i) largest = max_u16x2(largest, max_u16x2(packed[i].x, packed[i].y));
    return __any_sync(~0U, ((largest + kToSign) & 0x80008000U) != 0) != 0;
  }
  __device__ __forceinline__ void multiply(float factor) {
    const std::uint32_t factors = pack_half2(factor, factor);
#pragma unroll
    for (uint2& four : packed) {
      four.x = multiply_half2(four.x, factors);
      four.y = multiply_half2(four.y, factors);
    }
  }
};
using TokenParameters = ParametersOf<kTokenTiles>;

// Packs weights times a parameter of their tokens for add_weighted() and pack_gained_weights().
template <int Tiles>
__device__ __forceinline__ WeightsOf<Tiles> pack_weights(const float (&p)[Tiles][4],
                                                         const ParametersOf<Tiles>& scales) {
  WeightsOf<Tiles> weights;
#pragma unroll
  for (int tile = 0; tile < Tiles; ++tile) {
    const std::uint32_t low = __byte_perm(scales.pair(tile), 0, 0x1010);
    const std::uint32_t high = __byte_perm(scales.pair(tile), 0, 0x3232);
    weights.b[tile][0] = transpose_8x8(multiply_half2(pack_half2(p[tile][0], p[tile][1]), low));
    weights.b[tile][1] = transpose_8x8(multiply_half2(pack_half2(p[tile][2], p[tile][3]), high));
  }
  return weights;
}

template <int Tiles>
__device__ __forceinline__ void multiply(float (&out)[Tiles][4], float factor) {
#pragma unroll
  for (auto& tile : out) {
#pragma unroll
    for (float& x : tile) x *= factor;
  }
}

inline constexpr float kLargestWeight = 16;  // 2^kWeightBits
static_assert(kWeightBits == 4);

// Calls add(weights), which must add the products of weights times the scales of their tokens to `out`. If
// the largest weight times a scale exceeds half precision, `out` and the scales are divided by that weight
// during the call.
template <int TokenTiles, int Tiles, class Add>
__device__ __forceinline__ void add_weighted(const float (&p)[TokenTiles][4], ParametersOf<TokenTiles> scales,
                                             float (&out)[Tiles][4], const Add& add) {
  const bool overflows = scales.overflow_weights();
  if (overflows) {
    scales.multiply(1 / kLargestWeight);
    multiply(out, 1 / kLargestWeight);
  }
  add(pack_weights(p, scales));
  if (overflows) multiply(out, kLargestWeight);
}

// Packs weights times the gains of their tokens, in units of kLargestWeight, so all gains fit in half
// precision. Gains are the norms of tokens and rarely far below 1. For tokens whose weight is 2^-14 of the
// largest, products keep 10 bits. lm3 took 2 to 7 % longer with add_weighted(), whose vote takes time if
// memory is not the limit.
__device__ __forceinline__ Weights pack_gained_weights(const Scores& p, TokenParameters gains) {
  gains.multiply(1 / kLargestWeight);
  return pack_weights(p, gains);
}

// Returns the sum of `x` over all lanes that hold tokens of the same heads.
__device__ __forceinline__ float sum_over_tokens(float x) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(~0U, x, step);
  return x;
}

// The XOR with kSignBits turns a signed byte into an unsigned one that is 128 larger.
inline constexpr std::uint32_t kSignBits = 0x80808080U;

// Returns byte i of x minus `bias`.
__device__ __forceinline__ float float_from_byte(std::uint32_t x, int i, float bias) {
  return __uint_as_float(__byte_perm(x, 0x4b000000U, 0x7540 + i)) - (8388608.0F + bias);
}

// Returns the first or the last two bytes of x minus `bias` as half-precision numbers.
enum class Bytes { first, last };
__device__ __forceinline__ std::uint32_t half2_from_bytes(std::uint32_t x, Bytes which, float bias) {
  const std::uint32_t shifted =
      __byte_perm(x, 0x64646464U, which == Bytes::first ? 0x4140 : 0x4342);  // 1024 + byte
  const __half2 number =
      __hsub2(*reinterpret_cast<const __half2*>(&shifted), __float2half2_rn(1024.0F + bias));
  return *reinterpret_cast<const std::uint32_t*>(&number);
}

template <int D>
__device__ __forceinline__ void clear(float (&x)[D][4]) {
#pragma unroll
  for (int i = 0; i < D; ++i) x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0;
}

}  // namespace kvant::cuda
