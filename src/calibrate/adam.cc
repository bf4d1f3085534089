#include "calibrate/adam.h"

#include <cmath>

#include "base/check.h"
#include "base/simd_clones.h"

namespace kvant {
namespace {

constexpr float kBeta1 = 0.9F;
constexpr float kBeta2 = 0.999F;
constexpr float kEpsilon = 1e-8F;

KVANT_SIMD_CLONES void update(const float* gradient, std::size_t n, float rate, float correction1,
                              float correction2, float* first, float* second, float* weights) {
  for (std::size_t i = 0; i < n; ++i) {
    first[i] = kBeta1 * first[i] + (1 - kBeta1) * gradient[i];
    second[i] = kBeta2 * second[i] + (1 - kBeta2) * gradient[i] * gradient[i];
    weights[i] -= rate * (first[i] * correction1) / (std::sqrt(second[i] * correction2) + kEpsilon);
  }
}

}  // namespace

void Adam::step(const std::vector<float>& gradient, std::vector<float>& weights) {
  KVANT_CHECK(gradient.size() == first_.size() && weights.size() == first_.size(),
              "Adam of a different size");
  ++steps_;
  const auto t = static_cast<float>(steps_);
  update(gradient.data(), gradient.size(), rate_, 1 / (1 - std::pow(kBeta1, t)),
         1 / (1 - std::pow(kBeta2, t)), first_.data(), second_.data(), weights.data());
}

}  // namespace kvant
