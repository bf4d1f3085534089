// Approximates a page's values by a product of two thin matrices. The format gear stores the error of its
// inner format in this form.
#pragma once

#include "base/geometry.h"
#include "format/affine_row.h"

namespace kvant {

inline constexpr int kMaxRank = 16;

// LowRankFactors approximates rows [kPageTokens, d] by tokens [kPageTokens, rank] * channels [rank, d]. Both
// factors are token-major. Component k is column k of `tokens` and row k of `channels`.
struct LowRankFactors {
  float tokens[kPageTokens * kMaxRank];
  float channels[kMaxRank * kMaxHeadDim];
};

// Minimizes |rows - tokens * channels|^2 approximately, by subspace iteration (power iteration on `rank`
// vectors at once, as in PowerSGD and GEAR). The iteration starts from fixed vectors, so equal input gives
// equal factors. Column k and row k have equal lengths, which suits a storage type of limited range. Zero
// rows give zero rows of `tokens`, and components beyond the rank of the matrix are zero. The magnitudes in
// `rows` are at most 1, so no sum of squares overflows. d is a multiple of 8 and at most kMaxHeadDim. `rank`
// is at most kMaxRank.
void fit_low_rank(const float* rows, int d, int rank, LowRankFactors& factors);

// Computes rows [n, d] += tokens [n, rank] * channels [rank, d].
void add_low_rank(const LowRankFactors& factors, int n, int d, int rank, float* rows);

}  // namespace kvant
