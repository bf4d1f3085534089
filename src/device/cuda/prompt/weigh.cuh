// Turns a tile's scores into weights, which are unsigned bytes relative to the row's largest score in the
// tile. Weights therefore have 8 bits wherever a tile's scores lie (FlashQ in TurboAttention, section 4,
// which has a scale for each tile).
#pragma once

#include "base/sas.h"
#include "device/cuda/common/ptx.cuh"
#include "device/cuda/decode/sas_polynomial.cuh"
#include "device/cuda/prompt/tile_layout.cuh"

namespace kvant::cuda {

// A sum of products starts with kRounderBits. Read as F32, its bits are then kRounder plus the sum, if the
// sum's magnitude is below 2^22.
inline constexpr std::uint32_t kRounderBits = 0x4B400000;
inline constexpr float kRounder = 0x1.8p23F;
// A sum of 256 products of signed bytes is never smaller than this.
inline constexpr int kLeastScore = -(1 << 22);

// Reads a score's 32 bits as F32, which is kRounder plus the score. The sum of products must have started
// with kRounderBits.
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
// Reads a score's 32 bits as an integer.
struct IntegerScores {
  static constexpr std::uint32_t kStartBits = 0;
  static constexpr std::uint32_t kMasked = 0x80000000;
  static constexpr float kZero = 0;
  // With steps smaller than this, masked scores would get weights above 0. With steps of this size, the
  // exponents of other scores are below 2^-6 in magnitude, so all their weights are almost equal anyway.
  static constexpr float kLeastStep = 0x1p-27F;
  __device__ static __forceinline__ float value(std::uint32_t bits) {
    return __int2float_rn(static_cast<int>(bits));
  }
  // Masked scores stay far below all other scores.
  __device__ static __forceinline__ std::uint32_t less(std::uint32_t bits, float top) {
    return static_cast<std::uint32_t>(max(static_cast<int>(bits), -(1 << 30)) - static_cast<int>(top));
  }
};

// The largest weight is 2^kWeightTop, which must stay below 255.5 however the exponent was rounded.
inline constexpr float kWeightTop = 7.992F;

// The constants limit a step of the integer scores, in log2 of weights. For steps up to kCoarseStep, an
// exponent is one product and sum. Rounding such an exponent by about three steps costs weights less than a
// fifth of a bit. For larger steps, exponents come from the difference to the row's largest score, which is
// exact. Steps beyond kLargestStep count as kLargestStep, so products with scores stay finite. With steps so
// large, only the largest score has a weight.
inline constexpr float kCoarseStep = 0x1p-4F;
inline constexpr float kLargestStep = 0x1p100F;

// A row's sums are in units of 2^(reference - kSumExponent + 149). Sums of products and of weights are read
// as the subnormal F32 numbers with the same bits, which count units of 2^-149.
inline constexpr float kSumExponent = 72;
// A tile's exponent may exceed the reference by this much.
inline constexpr float kReferenceSlack = 16;

// Masks the scores of row i unless low[i] <= column < high[i]. A thread's scores are columns 8 j + 2 t and 8
// j + 2 t + 1. Row g lies in s[4 j] and s[4 j + 1], and row g + 8 in s[4 j + 2] and s[4 j + 3].
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

// Computes 2^(c s + b) for scores s that include kRounder, or that are relative to the largest score.
struct ExactWeight {
  float factor, offset;
  __device__ __forceinline__ ExactWeight(float c, float b) : factor(c), offset(b) {}
  __device__ __forceinline__ float operator()(float s) const { return exp2_fast(fmaf(s, factor, offset)); }
};

// Approximates weights like SAS (sas_polynomial.cuh). A weight is e^-(whole + 1/2 + g) with g in [-1/2, 1/2].
// Scores below the floor get weight 0.
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

// Rounds four numbers below 255.5 to bytes.
__device__ __forceinline__ std::uint32_t rounded_to_bytes(const float (&w)[4]) {
  if constexpr (Architecture::kPacksBytes) {
    return pack_unsigned_bytes(w[0], w[1], pack_unsigned_bytes(w[2], w[3], 0));
  } else {
    // Adding 1024 makes half-precision numbers whole, so the low byte is the rounded number.
    constexpr std::uint32_t kRounders = 0x64006400;
    return __byte_perm(add_half2(pack_half2(w[0], w[1]), kRounders),
                       add_half2(pack_half2(w[2], w[3]), kRounders), 0x6420);
  }
}

// Holds the sums of a thread's two rows over all tiles so far.
struct RowSums {
  float reference[2] = {-INFINITY, -INFINITY};  // log2 of the unit of weights
  // The sums of weights cover only this thread's columns.
  float mass[2] = {};
  // Holds the sums of weights times the values' scales. Times kByteCentre, the sums are the part of outputs
  // that comes from the offset of values' bytes.
  float offset[2] = {};
};

// Describes how a tile's scores become weights. Score s of row i gets weight 2^(c[i] s + b[i]). exponent[i]
// is log2 of the unit of these weights.
struct TileExponents {
  float c[2], b[2], exponent[2];
};

// Finds the exponents of a tile, or of half a tile, from its rows' largest scores. If steps are coarse,
// subtracts the largest score from all scores. If an exponent is far above a row's reference, the reference
// and the row's sums follow.
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
  bool is_rare = false;  // true only for coarse steps or a rising reference
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    largest[row] = max(largest[row], __shfl_xor_sync(~0U, largest[row], 1));
    largest[row] = max(largest[row], __shfl_xor_sync(~0U, largest[row], 2));
    top[row] = fmaxf(Numbers::value(largest[row]), Numbers::kZero + kLeastScore);
    of.c[row] = fminf(fmaxf(query_scale[row] * key_scale, Numbers::kLeastStep), kLargestStep);
    // The factor makes `b` slightly smaller, so rounding makes no weight larger than kWeightTop allows.
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

// Turns scores into weights. p[4 k] to p[4 k + 3] are this thread's A operand for tokens 32 k to 32 k + 31.
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
      // Each word has weights for 16 columns. If i / 8 is even, these are the first half of the columns.
      p[i / 4 + row] = rounded_to_bytes(w);
    }
  }
}

// Adds a tile's weights to a thread's rows, and sets the factors of the tile's products.
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

// Computes the weights of a tile, or of half a tile, and the factors of its products.
template <class Weight, class Numbers, int Scores, int N>
__device__ __forceinline__ void weigh(std::uint32_t (&s)[Scores], std::uint32_t (&p)[Scores / 4],
                                      const float (&query_scale)[2], float key_scale, float value_scale,
                                      RowSums& rows, float (&factor)[2], float (&sums)[N]) {
  const TileExponents of = find_exponents<Numbers>(s, query_scale, key_scale, rows, sums);
  make_weights<Weight, Numbers>(s, of, p);
  add_weights(of, p, value_scale, rows, factor);
}

}  // namespace kvant::cuda
