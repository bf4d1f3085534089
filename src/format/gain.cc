#include "format/gain.h"

#include <array>
#include <cmath>

#include "base/float16.h"
#include "base/simd_clones.h"

namespace kvant {
namespace {

KVANT_SIMD_CLONES double dot(const float* x, const float* y, int n) {
  constexpr int kLanes = 8;  // Independent sums let the loop vectorize.
  std::array<double, kLanes> sums{};
  for (int i = 0; i < n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      sums[lane] += static_cast<double>(x[i + lane]) * static_cast<double>(y[i + lane]);
    }
  }
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

double exact_gain(const float* x, const float* shape, int n, double along, GainRule rule) {
  switch (rule) {
    case GainRule::least_squares:
      return along / dot(shape, shape, n);
    case GainRule::unbiased:
      return dot(x, x, n) / along;
    case GainRule::length:
      break;
  }
  return std::sqrt(dot(x, x, n) / dot(shape, shape, n));
}

}  // namespace

double norm(const float* x, int n) {
  return std::sqrt(dot(x, x, n));
}

std::uint16_t fit_gain(const float* x, const float* shape, int n, GainRule rule) {
  const double along = dot(x, shape, n);
  if (along <= 0) return 0;
  return f16_from_float_saturated(
      static_cast<float>(std::fmin(exact_gain(x, shape, n, along, rule), kF16Max)));
}

}  // namespace kvant
