#include "transform/channel_scaling.h"

#include <algorithm>

#include "base/simd_clones.h"
#include "transform/calibrated_constants.h"

namespace kvant {
namespace {

constexpr float kSmallestShare = 1e-3F;  // smallest factor relative to the largest

KVANT_SIMD_CLONES void multiply_channels(MatrixView<float> x, const float* factors) {
  for (int r = 0; r < x.rows; ++r) {
    float* row = x.row(r);
    for (int i = 0; i < x.cols; ++i) row[i] *= factors[i];
  }
}

class ChannelScaling final : public TransformStep {
 public:
  explicit ChannelScaling(std::vector<float> factors)
      : factors_(std::move(factors)), inverses_(factors_.size()) {
    for (std::size_t i = 0; i < factors_.size(); ++i) inverses_[i] = 1.0F / factors_[i];
  }
  void forward(MatrixView<float> x) const override { multiply_channels(x, inverses_.data()); }
  void inverse(MatrixView<float> x) const override { multiply_channels(x, factors_.data()); }
  void query(MatrixView<float> q, float* /*offset*/) const override { multiply_channels(q, factors_.data()); }

 private:
  std::vector<float> factors_, inverses_;  // [d]
};

void guard(std::vector<float>& factors) {
  const float largest = *std::max_element(factors.begin(), factors.end());
  for (float& factor : factors) {
    factor = largest > 0 ? std::max(factor, kSmallestShare * largest) : 1.0F;
  }
}

}  // namespace

Result<std::unique_ptr<TransformStep>> make_channel_scaling(int head_dim, const HeadConstants& constants,
                                                            const std::string& constant_name) {
  const auto found = calibrated_constants(constants, constant_name, static_cast<std::size_t>(head_dim));
  if (!found.ok()) return found.error();
  std::vector<float> factors(found->begin(), found->end());
  guard(factors);
  return std::unique_ptr<TransformStep>(std::make_unique<ChannelScaling>(std::move(factors)));
}

}  // namespace kvant
