// Turns scores of half-precision products into weights. Weights are relative to a row's reference, which
// moves only if the row's scores rise a lot. Sums of values therefore seldom need to be rescaled.
#pragma once

#include "device/cuda/prompt/weigh.cuh"

namespace kvant::cuda {

// A row's sums are in units of 2^reference. This value means that the row has no sums yet.
inline constexpr float kNoReference = -1e30F;

// ExactHalfWeight and SasHalfWeight compute weights of a row's scores in a tile. `top` is the tile's largest
// score, in log2.

// Computes 2^(scale * score - reference).
struct ExactHalfWeight {
  float factor, offset;
  __device__ __forceinline__ ExactHalfWeight(float scale_log2, float /*top*/, float reference)
      : factor(scale_log2), offset(-reference) {}
  __device__ __forceinline__ float operator()(float s) const { return exp2_fast(fmaf(s, factor, offset)); }
};

// Approximates weights like SAS (sas_polynomial.cuh). A weight is the weight of the tile's top times
// e^-(whole + 1/2 + g) with g in [-1/2, 1/2]. Scores below a floor get weight 0. The floor is relative to the
// tile's top, while TurboAttention's Algorithm 1 makes it relative to the largest score so far. A text's
// first tokens often have scores far above all others, so Algorithm 1 would zero most of the later tiles.
struct SasHalfWeight {
  static constexpr float kLn2 = 0.69314718F;
  float factor, offset, exponent;
  __device__ __forceinline__ SasHalfWeight(float scale_log2, float top, float reference)
      : factor(-kLn2 * scale_log2), offset(fmaf(top, kLn2, -0.5F)), exponent(top - reference) {}
  __device__ __forceinline__ float operator()(float s) const {
    const float x = fmaf(s, factor, offset);
    const float whole = (x + kRounder) - kRounder;
    const float polynomial = centred_sas_polynomial(x - whole);
    const float weight = exp2_fast(fmaf(whole, -1 / kLn2, exponent)) * polynomial;
    return x > -kSasFloor - 0.5F ? 0 : weight;
  }
};

// Sets a thread's masked scores to -infinity. Scores are F32 and arranged as in weigh.cuh.
template <int N>
__device__ __forceinline__ void mask_scores(float (&s)[N], const int (&low)[2], const int (&high)[2],
                                            int pair) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int row = i / 2 % 2;
    const int column = i / 4 * 8 + 2 * pair + i % 2;
    if (column < low[row] || column >= high[row]) s[i] = -INFINITY;
  }
}

// Turns products into capped scores in units of log 2. The call must come before any score is masked. tanh x
// is computed as 1 - 2 / (e^2x + 1), whose absolute error is about 2^-21. Four reciprocals come from one
// reciprocal of four numbers' product. The exponent is limited to a value where tanh is 1, which keeps the
// product below 2^125.
template <int N>
__device__ __forceinline__ void cap_scores(float (&s)[N], float softcap_log2, float slope) {
  static_assert(N % 4 == 0);
  constexpr float kLargestExponent = 31;
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    float x[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = exp2_fast(fminf(s[i + j] * slope, kLargestExponent)) + 1;
    const float low = x[0] * x[1], high = x[2] * x[3];
    const float factor = -2 * softcap_log2 * reciprocal_fast(low * high);
    const float of_low = factor * high, of_high = factor * low;
    s[i] = fmaf(of_low, x[1], softcap_log2);
    s[i + 1] = fmaf(of_low, x[0], softcap_log2);
    s[i + 2] = fmaf(of_high, x[3], softcap_log2);
    s[i + 3] = fmaf(of_high, x[2], softcap_log2);
  }
}

// Turns scores into weights in place. PromptArgs::slack_log2 explains `slack`. Sets `shrink` to the factors
// of earlier sums, and returns true unless all factors of the warp's rows are 1.
template <class Weight, int N>
__device__ __forceinline__ bool weigh_scores(float (&s)[N], float scale_log2, float slack, RowSums& rows,
                                             float (&shrink)[2]) {
  float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int i = 0; i < N; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
  bool rises = false;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    top[row] = fmaxf(top[row], __shfl_xor_sync(~0U, top[row], 1));
    top[row] = fmaxf(top[row], __shfl_xor_sync(~0U, top[row], 2)) * scale_log2;
    rises |= top[row] > rows.reference[row] + slack;
    shrink[row] = 1;
  }
  const bool any = __any_sync(~0U, rises) != 0;
  if (any) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (top[row] <= rows.reference[row] + slack) continue;
      shrink[row] = exp2_fast(rows.reference[row] - top[row]);
      rows.reference[row] = top[row];
      rows.mass[row] *= shrink[row];
    }
  }
  float mass[2] = {};
#pragma unroll
  for (int i = 0; i < N; ++i) {
    s[i] = Weight(scale_log2, fmaxf(top[i / 2 % 2], kNoReference), rows.reference[i / 2 % 2])(s[i]);
    mass[i / 2 % 2] += s[i];
  }
  rows.mass[0] += mass[0];
  rows.mass[1] += mass[1];
  return any;
}

}  // namespace kvant::cuda
