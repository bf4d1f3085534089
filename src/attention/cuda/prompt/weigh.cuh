// A tile's scores become weights: unsigned bytes relative to the largest score of a row in the tile, so that
// weights have 8 bits wherever a tile's scores lie (FlashQ, TurboAttention section 4: a scale for each tile).
#pragma once

#include "attention/cuda/decode/sas_polynomial.cuh"
#include "attention/cuda/device/ptx.cuh"
#include "attention/cuda/prompt/tile_layout.cuh"
#include "attention/sas.h"

namespace kvant::cuda {

// Sums of products that begin with these bits are, read as F32, kRounder plus the sum: |sum| < 2^22.
inline constexpr std::uint32_t kRounderBits = 0x4B400000;
inline constexpr float kRounder = 0x1.8p23F;
// No sum of 256 products of signed bytes is less.
inline constexpr float kLeastScore = kRounder - 0x1p22F;
inline constexpr std::uint32_t kMaskedBits = 0xFF800000;  // -infinity

// log2 of the largest weight, which must be below 255.5 however the exponent was rounded.
inline constexpr float kWeightTop = 7.992F;

// A step of the integer scores, in log2 of weights. Exponents of steps up to kCoarseStep are one product and
// sum for a score, whose rounding, some three steps, costs weights less than a fifth of a bit; of larger ones
// they are computed from the difference to the row's top, which is exact. A step beyond kLargestStep counts
// as that: products with scores stay finite, and only the top has a weight either way.
inline constexpr float kCoarseStep = 0x1p-4F;
inline constexpr float kLargestStep = 0x1p100F;

// A row's sums are in units of 2^(reference - kSumExponent + 149). Numbers of products and weights are taken
// as the subnormal F32 numbers that their bits are: those count units of 2^-149.
inline constexpr float kSumExponent = 72;
// How far a tile's exponent may be above the reference.
inline constexpr float kReferenceSlack = 16;

// Scores of a thread: columns 8 j + 2 t and the next, of row g in s[4 j] and s[4 j + 1], of row g + 8 in the
// two behind them. Row i's unless `low[i]` <= column < `high[i]`: masked.
template <int N>
__device__ __forceinline__ void mask_scores(std::uint32_t (&s)[N], const int (&low)[2], const int (&high)[2],
                                            int pair) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int row = i / 2 % 2;
    const int column = i / 4 * 8 + 2 * pair + i % 2;
    if (column < low[row] || column >= high[row]) s[i] = kMaskedBits;
  }
}

// 2^(c s + b) for scores s: with kRounder, or less the top.
struct ExactWeight {
  float factor, offset;
  __device__ __forceinline__ ExactWeight(float c, float b) : factor(c), offset(b) {}
  __device__ __forceinline__ float operator()(float s) const { return exp2_fast(fmaf(s, factor, offset)); }
};

// As SAS approximates it (sas_polynomial.cuh): e^-(whole + 1/2 + g), g in [-1/2, 1/2]; 0 below the
// floor.
struct SasWeight {
  static constexpr float kLn2 = 0.69314718F;
  float factor, offset;
  __device__ __forceinline__ SasWeight(float c, float b)
      : factor(-kLn2 * c), offset(fmaf(kWeightTop - b, kLn2, -0.5F)) {}
  __device__ __forceinline__ float operator()(float s) const {
    const float x = fmaf(s, factor, offset);
    const float rounded = x + kRounder;
    const float whole = rounded - kRounder;
    const float g = x - whole;
    const float polynomial = centred_sas_polynomial(g);
    const float weight = exp2_fast(fmaf(whole, -1 / kLn2, kWeightTop)) * polynomial;
    return x > -kSasFloor - 0.5F ? 0 : weight;
  }
};

__device__ __forceinline__ std::uint32_t add_half2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t c;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

// Four numbers below 255.5 as bytes: halves with 1024 added are whole.
__device__ __forceinline__ std::uint32_t rounded_to_bytes(const float (&w)[4]) {
  constexpr std::uint32_t kRounders = 0x64006400;
  return __byte_perm(add_half2(pack_half2(w[0], w[1]), kRounders),
                     add_half2(pack_half2(w[2], w[3]), kRounders), 0x6420);
}

// The two rows of a thread over all tiles so far.
struct RowSums {
  float reference[2] = {-INFINITY, -INFINITY};  // log2 of the unit that weights are in
  float mass[2] = {};                           // this thread's columns only
  float offset[2] = {};                         // mass, times values' scales: what the centre of values adds
};

// Weights of a tile, or of half of one: p[4 k .. 4 k + 3] is this thread's A operand for tokens 32 k to 32 k
// + 31. Sets what the tile's products are multiplied by.
template <class Weight, int Scores, int N>
__device__ __forceinline__ void weigh(std::uint32_t (&s)[Scores], std::uint32_t (&p)[Scores / 4],
                                      const float (&query_scale)[2], float key_scale, float value_scale,
                                      RowSums& rows, float (&factor)[2], float (&sums)[N]) {
  int largest[2] = {static_cast<int>(kMaskedBits), static_cast<int>(kMaskedBits)};
#pragma unroll
  for (int i = 0; i < Scores; i += 4) {
#pragma unroll
    for (int row = 0; row < 2; ++row)
      largest[row] =
          __vimax3_s32(largest[row], static_cast<int>(s[i + 2 * row]), static_cast<int>(s[i + 2 * row + 1]));
  }
  float top[2], c[2], b[2], exponent[2];
  bool is_coarse = false;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    largest[row] = max(largest[row], __shfl_xor_sync(~0U, largest[row], 1));
    largest[row] = max(largest[row], __shfl_xor_sync(~0U, largest[row], 2));
    top[row] = fmaxf(__int_as_float(largest[row]), kLeastScore);
    c[row] = fminf(query_scale[row] * key_scale, kLargestStep);
    // A little less than top's, so that rounding makes no weight larger than kWeightTop allows.
    b[row] = fmaf(-top[row] * (1 + 0x1p-22F), c[row], kWeightTop);
    exponent[row] = fmaf(-kRounder, c[row], -b[row]);
    is_coarse |= c[row] > kCoarseStep;
  }
  if (__any_sync(~0U, is_coarse)) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      b[row] = kWeightTop;
      exponent[row] = fmaf(top[row] - kRounder, c[row], -kWeightTop);
    }
#pragma unroll
    for (int i = 0; i < Scores; ++i) s[i] = __float_as_uint(__uint_as_float(s[i]) - top[i / 2 % 2]);
  }
  bool rises = false;
#pragma unroll
  for (int row = 0; row < 2; ++row) rises |= exponent[row] > rows.reference[row] + kReferenceSlack;
  if (__any_sync(~0U, rises)) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (exponent[row] > rows.reference[row] + kReferenceSlack) {
        const float shrink = exp2_fast(rows.reference[row] - exponent[row]);
        rows.reference[row] = exponent[row];
        rows.mass[row] *= shrink;
        rows.offset[row] *= shrink;
#pragma unroll
        for (int i = 0; i < N; i += 4) {
          sums[i + 2 * row] *= shrink;
          sums[i + 2 * row + 1] *= shrink;
        }
      }
    }
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const Weight weight(c[row], b[row]);
    std::uint32_t total = 0;
#pragma unroll
    for (int i = 0; i < Scores; i += 8) {
      float w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) w[j] = weight(__uint_as_float(s[i + j / 2 * 4 + 2 * row + j % 2]));
      const std::uint32_t bytes = rounded_to_bytes(w);
      p[i / 4 + row] = bytes;  // of 16 columns, the first half for even i / 8
      total = __dp4a(bytes, 0x01010101U, total);
    }
    const float unit = exp2_fast(exponent[row] - rows.reference[row] + kSumExponent);
    factor[row] = unit * value_scale;
    rows.mass[row] = fmaf(__uint_as_float(total), unit, rows.mass[row]);
    rows.offset[row] = fmaf(__uint_as_float(total), factor[row], rows.offset[row]);
  }
}

}  // namespace kvant::cuda
