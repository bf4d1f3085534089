// amax is the map x -> x / s, with one s for K and one for V of a layer. s is the largest |x| over the
// calibration text divided by 448, the largest e4m3 number; serving engines call s the scale of an FP8 cache.
// The constants are the largest |x| of each channel [d]. s covers all channels and all KV heads of the layer
// that have constants.
#include <algorithm>
#include <cmath>

#include "transform/calibrated_constants.h"
#include "transform/kinds.h"

namespace kvant {
namespace {

constexpr float kLargestNumber = 448;  // the largest e4m3 number
constexpr float kSmallestScale = 0x1p-100F;

void multiply(MatrixView<float> x, float factor) {
  for (int r = 0; r < x.rows; ++r)
    for (int i = 0; i < x.cols; ++i) x.row(r)[i] *= factor;
}

class TensorScale final : public TransformStep {
 public:
  explicit TensorScale(float scale) : scale_(scale) {}
  void forward(MatrixView<float> x) const override { multiply(x, 1 / scale_); }
  void inverse(MatrixView<float> x) const override { multiply(x, scale_); }
  void query(MatrixView<float> q, float* /*offset*/) const override { multiply(q, scale_); }

 private:
  float scale_;
};

float largest_of(std::span<const float> values) {
  float largest = 0;
  for (const float x : values) largest = std::max(largest, std::fabs(x));
  return largest;
}

Result<std::unique_ptr<TransformStep>> make(int head_dim, const HeadConstants& constants,
                                            const std::string& constant_name) {
  const auto own = calibrated_constants(constants, constant_name, static_cast<std::size_t>(head_dim));
  if (!own.ok()) return own.error();
  float largest = largest_of(*own);
  HeadConstants other = constants;
  for (other.kv_head = 0; !other.find(constant_name).empty(); ++other.kv_head)
    largest = std::max(largest, largest_of(other.find(constant_name)));
  const float scale = largest / kLargestNumber;
  return std::unique_ptr<TransformStep>(
      std::make_unique<TensorScale>(scale >= kSmallestScale && std::isfinite(scale) ? scale : 1));
}

}  // namespace

const TransformKind amax_transform = {
    "amax", "K or V of a layer divided by its largest value / 448, the scale of serving engines' FP8", true,
    false, make};

}  // namespace kvant
