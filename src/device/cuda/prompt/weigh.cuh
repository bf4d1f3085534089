// A tile's scores become weights: unsigned bytes relative to the largest score of a row in the tile, so that
// weights have 8 bits wherever a tile's scores lie (FlashQ, TurboAttention section 4: a scale for each tile).
#pragma once

#include "attention/sas.h"
#include "device/cuda/decode/sas_polynomial.cuh"
#include "device/cuda/device/ptx.cuh"
#include "device/cuda/prompt/tile_layout.cuh"

namespace kvant::cuda {

// Sums of products that begin with these bits are, read as F32, kRounder plus the sum: |sum| < 2^22.
inline constexpr std::uint32_t kRounderBits = 0x4B400000;
inline constexpr float kRounder = 0x1.8p23F;
// No sum of 256 products of signed bytes is less.
inline constexpr int kLeastScore = -(1 << 22);

// What 32 bits of a score are: such a number, or the sum itself.
struct RoundedScores {
  static constexpr std::uint32_t kStartBits = kRounderBits;
  static constexpr std::uint32_t kMasked = 0xFF800000;  // -infinity
  static constexpr float kZero = kRounder;
  static constexpr float kLeastStep = 0;
  __device__ static __forceinline__ float value(std::uint32_t bits) { return __uint_as_float(bits); }
  __device__ static __forceinline__ std::uint32_t less(std::uint32_t bits, float top) {
    return __float_as_uint(value(bits) - top);
  }
};
struct IntegerScores {
  static constexpr std::uint32_t kStartBits = 0;
  static constexpr std::uint32_t kMasked = 0x80000000;
  static constexpr float kZero = 0;
  // That masked scores have no weight; all others are less than 2^-6 then.
  static constexpr float kLeastStep = 0x1p-27F;
  __device__ static __forceinline__ float value(std::uint32_t bits) {
    return __int2float_rn(static_cast<int>(bits));
  }
  // Masked ones stay far below all others.
  __device__ static __forceinline__ std::uint32_t less(std::uint32_t bits, float top) {
    return static_cast<std::uint32_t>(max(static_cast<int>(bits), -(1 << 30)) - static_cast<int>(top));
  }
};

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
template <class Numbers, int N>
__device__ __forceinline__ void mask_scores(std::uint32_t (&s)[N], const int (&low)[2], const int (&high)[2],
                                            int pair) {
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i / 4 * 8 + i % 2 >= high[i / 2 % 2] - 2 * pair) s[i] = Numbers::kMasked;
  if (!__any_sync(~0U, low[0] > 0 || low[1] > 0)) return;
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i / 4 * 8 + i % 2 < low[i / 2 % 2] - 2 * pair) s[i] = Numbers::kMasked;
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

// Four numbers below 255.5 as bytes.
__device__ __forceinline__ std::uint32_t rounded_to_bytes(const float (&w)[4]) {
  if constexpr (Architecture::kPacksBytes) {
    return pack_unsigned_bytes(w[0], w[1], pack_unsigned_bytes(w[2], w[3], 0));
  } else {
    // Halves with 1024 added are whole.
    constexpr std::uint32_t kRounders = 0x64006400;
    return __byte_perm(add_half2(pack_half2(w[0], w[1]), kRounders),
                       add_half2(pack_half2(w[2], w[3]), kRounders), 0x6420);
  }
}

// The two rows of a thread over all tiles so far.
struct RowSums {
  float reference[2] = {-INFINITY, -INFINITY};  // log2 of the unit that weights are in
  float mass[2] = {};                           // this thread's columns only
  float offset[2] = {};                         // mass, times values' scales: what the centre of values adds
};

// How a tile's scores become weights: 2^(c s + b) of row i's scores s. exponent: log2 of what its weights
// are in units of.
struct TileExponents {
  float c[2], b[2], exponent[2];
};

// The exponents of a tile, or of half of one, from its rows' largest scores. Where steps are coarse, scores
// lose the largest one. Sums follow a tile whose exponents are far above the reference.
template <class Numbers, int Scores, int N>
__device__ __forceinline__ TileExponents find_exponents(std::uint32_t (&s)[Scores],
                                                        const float (&query_scale)[2], float key_scale,
                                                        RowSums& rows, float (&sums)[N]) {
  constexpr int kMasked = static_cast<int>(Numbers::kMasked);
  int largest[2] = {kMasked, kMasked};
#pragma unroll
  for (int i = 0; i < Scores; i += 4) {
#pragma unroll
    for (int row = 0; row < 2; ++row)
      largest[row] =
          __vimax3_s32(largest[row], static_cast<int>(s[i + 2 * row]), static_cast<int>(s[i + 2 * row + 1]));
  }
  TileExponents of;
  float top[2];
  bool is_rare = false;  // steps are coarse, or the reference rises
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    largest[row] = max(largest[row], __shfl_xor_sync(~0U, largest[row], 1));
    largest[row] = max(largest[row], __shfl_xor_sync(~0U, largest[row], 2));
    top[row] = fmaxf(Numbers::value(largest[row]), Numbers::kZero + kLeastScore);
    of.c[row] = fminf(fmaxf(query_scale[row] * key_scale, Numbers::kLeastStep), kLargestStep);
    // A little less than top's, so that rounding makes no weight larger than kWeightTop allows.
    of.b[row] = fmaf(-top[row] * (1 + 0x1p-22F), of.c[row], kWeightTop);
    of.exponent[row] = fmaf(-Numbers::kZero, of.c[row], -of.b[row]);
    is_rare |= of.c[row] > kCoarseStep || of.exponent[row] > rows.reference[row] + kReferenceSlack;
  }
  if (!__any_sync(~0U, is_rare)) return of;
  if (__any_sync(~0U, of.c[0] > kCoarseStep || of.c[1] > kCoarseStep)) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      of.b[row] = kWeightTop;
      of.exponent[row] = fmaf(top[row] - Numbers::kZero, of.c[row], -kWeightTop);
    }
#pragma unroll
    for (int i = 0; i < Scores; ++i) s[i] = Numbers::less(s[i], top[i / 2 % 2]);
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (of.exponent[row] > rows.reference[row] + kReferenceSlack) {
      const float shrink = exp2_fast(rows.reference[row] - of.exponent[row]);
      rows.reference[row] = of.exponent[row];
      rows.mass[row] *= shrink;
      rows.offset[row] *= shrink;
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        sums[i + 2 * row] *= shrink;
        sums[i + 2 * row + 1] *= shrink;
      }
    }
  }
  return of;
}

// p[4 k .. 4 k + 3] is this thread's A operand for tokens 32 k to 32 k + 31.
template <class Weight, class Numbers, int Scores>
__device__ __forceinline__ void make_weights(const std::uint32_t (&s)[Scores], const TileExponents& of,
                                             std::uint32_t (&p)[Scores / 4]) {
  const Weight weights[2] = {Weight(of.c[0], of.b[0]), Weight(of.c[1], of.b[1])};
#pragma unroll
  for (int i = 0; i < Scores; i += 8) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) w[j] = weights[row](Numbers::value(s[i + j / 2 * 4 + 2 * row + j % 2]));
      p[i / 4 + row] = rounded_to_bytes(w);  // of 16 columns, the first half for even i / 8
    }
  }
}

// Adds a tile's weights to a thread's rows. Sets what the tile's products are multiplied by.
template <int Words>
__device__ __forceinline__ void add_weights(const TileExponents& of, const std::uint32_t (&p)[Words],
                                            float value_scale, RowSums& rows, float (&factor)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    std::uint32_t total = 0;
#pragma unroll
    for (int i = row; i < Words; i += 2) total = __dp4a(p[i], 0x01010101U, total);
    const float unit = exp2_fast(of.exponent[row] - rows.reference[row] + kSumExponent);
    factor[row] = unit * value_scale;
    rows.mass[row] = fmaf(__uint_as_float(total), unit, rows.mass[row]);
    rows.offset[row] = fmaf(__uint_as_float(total), factor[row], rows.offset[row]);
  }
}

// Weights of a tile, or of half of one, and what its products are multiplied by.
template <class Weight, class Numbers, int Scores, int N>
__device__ __forceinline__ void weigh(std::uint32_t (&s)[Scores], std::uint32_t (&p)[Scores / 4],
                                      const float (&query_scale)[2], float key_scale, float value_scale,
                                      RowSums& rows, float (&factor)[2], float (&sums)[N]) {
  const TileExponents of = find_exponents<Numbers>(s, query_scale, key_scale, rows, sums);
  make_weights<Weight, Numbers>(s, of, p);
  add_weights(of, p, value_scale, rows, factor);
}

}  // namespace kvant::cuda
