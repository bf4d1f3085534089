#include "base/sas.h"

#include <bit>
#include <cstdint>
#include <numeric>

#include "base/masked.h"
#include "base/simd_clones.h"

namespace kvant {
namespace {

// kPowers holds exp(-1), exp(-2) and exp(-4), whose products are exp(-i) for i = 0 .. 6. Scores of exactly
// kSasFloor keep their weight, although Algorithm 3 as printed would zero it.
constexpr float kPowers[3] = {0.36787944F, 0.13533528F, 0.018315639F};

// Returns `factor` if `bit` is 1, and 1 if `bit` is 0.
inline float factor_if(std::uint32_t bit, float factor) {
  constexpr auto kOne = std::bit_cast<std::uint32_t>(1.0F);
  return std::bit_cast<float>(kOne ^ ((0U - bit) & (kOne ^ std::bit_cast<std::uint32_t>(factor))));
}

inline float polynomial(float f) {
  constexpr const auto& c = kSasPolynomial;
  return ((c[3] * f + c[2]) * f + c[1]) * f + c[0];
}

inline float near_exp(float x) {
  const std::uint32_t inside = 0U - static_cast<std::uint32_t>(x >= kSasFloor);
  const float below = masked(-x, inside);
  const int whole = static_cast<int>(below);
  const auto bits = static_cast<std::uint32_t>(whole);
  const float whole_exp = factor_if(bits & 1U, kPowers[0]) * factor_if(bits >> 1 & 1U, kPowers[1]) *
                          factor_if(bits >> 2 & 1U, kPowers[2]);
  return masked(whole_exp * polynomial(below - static_cast<float>(whole)), inside);
}

}  // namespace

float sas_exp(float x) {
  return near_exp(x);
}

// The sum has one term for each lane. The terms are independent, so the loop vectorizes without reordering
// additions.
KVANT_SIMD_CLONES float sas_row(float* x, int n, float max) {
  constexpr int kLanes = 16;
  float sums[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float weight = near_exp(x[i + lane] - max);
      x[i + lane] = weight;
      sums[lane] += weight;
    }
  }
  for (; i < n; ++i) {
    x[i] = near_exp(x[i] - max);
    sums[0] += x[i];
  }
  return std::accumulate(sums, sums + kLanes, 0.0F);
}

}  // namespace kvant
