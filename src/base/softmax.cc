#include "base/softmax.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/exp_series.h"
#include "base/masked.h"
#include "base/simd_clones.h"

namespace kvant {
namespace {

// Returns exp(x) for x <= 0 as 2^n * exp(f), where n = round(x / ln 2). The remainder f = x - n ln 2 has |f|
// <= ln 2 / 2, and ln 2 is subtracted in two parts for precision. A mask replaces x and the result by 0 where
// the result is 0, because a branch would keep the loops from vectorizing.
inline float exp_nonpositive(float x) {
  constexpr float kLog2e = 1.44269504F, kLn2High = 0.693359375F, kLn2Low = -2.12194440e-4F;
  constexpr float kLowest = -87.0F;      // exp(kLowest) is a normal number; the result is 0 for smaller x
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23; adding it rounds to an integer in the mantissa
  const std::uint32_t mask = static_cast<std::uint32_t>(x < kLowest) - 1U;
  const float kept = masked(x, mask);
  const float shifted = kept * kLog2e + kRound;
  const float n = shifted - kRound;
  const float f = kept - n * kLn2High - n * kLn2Low;
  const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(shifted) + 127U) << 23;
  return masked(std::bit_cast<float>(exponent) * exp_series(f), mask);
}

}  // namespace

KVANT_SIMD_CLONES float exp_row(float* x, int n, float max) {
  float sums[kReductionLanes] = {};
  int i = 0;
  for (; i + kReductionLanes <= n; i += kReductionLanes) {
    for (int lane = 0; lane < kReductionLanes; ++lane) {
      const float e = exp_nonpositive(x[i + lane] - max);
      x[i + lane] = e;
      sums[lane] += e;
    }
  }
  for (; i < n; ++i) {
    x[i] = exp_nonpositive(x[i] - max);
    sums[0] += x[i];
  }
  float sum = 0;
  for (float s : sums) sum += s;
  return sum;
}

KVANT_SIMD_CLONES float max_row(const float* x, int n) {
  constexpr int kMany = 4 * kReductionLanes;  // registers that do not wait for each other
  float best[kMany];
  for (float& b : best) b = x[0];
  int i = 0;
  for (; i + kMany <= n; i += kMany) {
    for (int lane = 0; lane < kMany; ++lane) best[lane] = x[i + lane] > best[lane] ? x[i + lane] : best[lane];
  }
  for (; i < n; ++i) best[0] = x[i] > best[0] ? x[i] : best[0];
  for (int half = kMany / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane)
      best[lane] = best[half + lane] > best[lane] ? best[half + lane] : best[lane];
  }
  return best[0];
}

KVANT_SIMD_CLONES void scale_row(float* y, int n, float factor) {
  for (int i = 0; i < n; ++i) y[i] *= factor;
}

KVANT_SIMD_CLONES void add_scaled_row(float* y, const float* x, int n, float factor) {
  for (int i = 0; i < n; ++i) y[i] += x[i] * factor;
}

}  // namespace kvant
