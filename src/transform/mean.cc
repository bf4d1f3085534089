// mean is the map x -> x - mean, with the channels' means [d] from calibration. On K the mean adds one number
// to all scores of a query, which softmax ignores (SageAttention's smoothing of K). Attention weights sum to
// 1, so adding V's mean to the attention output undoes the subtraction on V exactly.
#include "base/simd_clones.h"
#include "transform/calibrated_constants.h"
#include "transform/kinds.h"

namespace kvant {
namespace {

KVANT_SIMD_CLONES void add_channels(MatrixView<float> x, const float* terms, float factor) {
  for (int r = 0; r < x.rows; ++r) {
    float* row = x.row(r);
    for (int i = 0; i < x.cols; ++i) row[i] += factor * terms[i];
  }
}

class Mean final : public TransformStep {
 public:
  explicit Mean(std::span<const float> mean) : mean_(mean.begin(), mean.end()) {}
  void forward(MatrixView<float> x) const override { add_channels(x, mean_.data(), -1.0F); }
  void inverse(MatrixView<float> x) const override { add_channels(x, mean_.data(), 1.0F); }
  // In terms of TransformStep, A = I and b = -mean. Therefore q stays the same, and k.q = (k - mean).q +
  // mean.q.
  void query(MatrixView<float> q, float* offset) const override {
    if (offset == nullptr) return;
    for (int r = 0; r < q.rows; ++r) {
      const float* row = q.row(r);
      float sum = 0;
      for (int i = 0; i < q.cols; ++i) sum += row[i] * mean_[i];
      offset[r] += sum;
    }
  }

 private:
  std::vector<float> mean_;  // [d]
};

Result<std::unique_ptr<TransformStep>> make(int head_dim, const HeadConstants& constants,
                                            const std::string& constant_name) {
  const auto mean = calibrated_constants(constants, constant_name, static_cast<std::size_t>(head_dim));
  if (!mean.ok()) return mean.error();
  return std::unique_ptr<TransformStep>(std::make_unique<Mean>(*mean));
}

}  // namespace

const TransformKind mean_transform = {"mean", "channels minus their mean", true, true, make};

}  // namespace kvant
