#include "format/low_rank.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/simd_clones.h"

namespace kvant {
namespace {

constexpr int kIterations = 8;
constexpr int kLanes = 8;
// A column that orthogonalization shortens by this factor was a linear combination of the earlier columns.
constexpr double kDependent = 1e-5;

// Fills x [n] with signs that look random, because errors in practice are not orthogonal to such vectors. The
// signs are the same in every run.
void fill_with_signs(float* x, int n) {
  std::uint32_t state = 1;
  for (int i = 0; i < n; ++i) {
    state = state * 1664525U + 1013904223U;
    x[i] = (state >> 31) != 0 ? 1.0F : -1.0F;
  }
}

// Computes tokens[t][k] = <rows[t], channels[k]>.
KVANT_SIMD_CLONES void project_tokens(const float* rows, int d, int rank, LowRankFactors& factors) {
  for (int token = 0; token < kPageTokens; ++token) {
    const float* row = rows + static_cast<std::ptrdiff_t>(token) * d;
    for (int k = 0; k < rank; ++k) {
      const float* channels = factors.channels + static_cast<std::ptrdiff_t>(k) * d;
      std::array<float, kLanes> sums{};
      for (int i = 0; i < d; i += kLanes) {
        for (int lane = 0; lane < kLanes; ++lane) sums[lane] += row[i + lane] * channels[i + lane];
      }
      float sum = 0;
      for (const float part : sums) sum += part;
      factors.tokens[token * rank + k] = sum;
    }
  }
}

// Computes channels[k] = sum over t of tokens[t][k] * rows[t].
KVANT_SIMD_CLONES void project_channels(const float* rows, int d, int rank, LowRankFactors& factors) {
  std::fill_n(factors.channels, rank * d, 0.0F);
  for (int token = 0; token < kPageTokens; ++token) {
    const float* row = rows + static_cast<std::ptrdiff_t>(token) * d;
    for (int k = 0; k < rank; ++k) {
      const float weight = factors.tokens[token * rank + k];
      float* channels = factors.channels + static_cast<std::ptrdiff_t>(k) * d;
      for (int i = 0; i < d; ++i) channels[i] += weight * row[i];
    }
  }
}

// Returns the dot product of columns `one` and `other` of a matrix [kPageTokens, rank].
double product(const float* tokens, int rank, int one, int other) {
  double sum = 0;
  for (int token = 0; token < kPageTokens; ++token) {
    sum += double{tokens[token * rank + one]} * tokens[token * rank + other];
  }
  return sum;
}

void scale_column(float* tokens, int rank, int k, double factor) {
  for (int token = 0; token < kPageTokens; ++token) {
    tokens[token * rank + k] = static_cast<float>(tokens[token * rank + k] * factor);
  }
}

// Orthonormalizes the columns by modified Gram-Schmidt. Columns that depend on earlier columns become zero.
void orthonormalize(float* tokens, int rank) {
  for (int k = 0; k < rank; ++k) {
    const double before = product(tokens, rank, k, k);
    for (int other = 0; other < k; ++other) {
      const auto part = static_cast<float>(product(tokens, rank, k, other));
      for (int token = 0; token < kPageTokens; ++token)
        tokens[token * rank + k] -= part * tokens[token * rank + other];
    }
    const double after = product(tokens, rank, k, k);
    const bool independent = after > kDependent * kDependent * before;
    scale_column(tokens, rank, k, independent ? 1 / std::sqrt(after) : 0);
  }
}

// Gives column k of `tokens`, a unit vector, and row k of `channels` equal lengths without changing the
// product of the two. The new length is the square root of the row's length.
void balance(int d, int rank, LowRankFactors& factors) {
  for (int k = 0; k < rank; ++k) {
    float* channels = factors.channels + static_cast<std::ptrdiff_t>(k) * d;
    double power = 0;
    for (int i = 0; i < d; ++i) power += double{channels[i]} * channels[i];
    const double half = std::sqrt(std::sqrt(power));
    scale_column(factors.tokens, rank, k, half);
    for (int i = 0; i < d; ++i) channels[i] = half > 0 ? static_cast<float>(channels[i] / half) : 0;
  }
}

}  // namespace

void fit_low_rank(const float* rows, int d, int rank, LowRankFactors& factors) {
  fill_with_signs(factors.channels, rank * d);
  for (int i = 0; i < kIterations; ++i) {
    project_tokens(rows, d, rank, factors);
    orthonormalize(factors.tokens, rank);
    // Because the columns are orthonormal, the projection is the solution of least squares.
    project_channels(rows, d, rank, factors);
  }
  balance(d, rank, factors);
}

KVANT_SIMD_CLONES void add_low_rank(const LowRankFactors& factors, int n, int d, int rank, float* rows) {
  for (int token = 0; token < n; ++token) {
    float* row = rows + static_cast<std::ptrdiff_t>(token) * d;
    for (int k = 0; k < rank; ++k) {
      const float weight = factors.tokens[token * rank + k];
      const float* channels = factors.channels + static_cast<std::ptrdiff_t>(k) * d;
      for (int i = 0; i < d; ++i) row[i] += weight * channels[i];
    }
  }
}

}  // namespace kvant
