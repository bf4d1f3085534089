#include "cache/feature_map.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/simd_clones.h"

namespace kvant {
namespace {

// y <- x W for one row. W: [d, n].
KVANT_SIMD_CLONES void multiply_row(const float* x, const float* w, int d, int n, float* y) {
  std::fill(y, y + n, 0.0F);
  for (int i = 0; i < d; ++i) {
    for (int j = 0; j < n; ++j) y[j] += x[i] * w[i * n + j];
  }
}

void softmax_row(float* y, int n) {
  const float top = *std::max_element(y, y + n);
  float sum = 0;
  for (int j = 0; j < n; ++j) sum += y[j] = std::exp(y[j] - top);
  for (int j = 0; j < n; ++j) y[j] /= sum;
}

}  // namespace

void map_features(std::span<const float> weights, MatrixView<const float> x, MatrixView<float> features) {
  constexpr int kHalf = kCorrectionFeatures / 2;
  KVANT_CHECK(weights.size() == feature_map_weights(x.cols), "a feature map of another head size");
  for (int r = 0; r < x.rows; ++r) {
    for (int half = 0; half < 2; ++half) {
      float* y = features.row(r) + half * kHalf;
      multiply_row(x.row(r), weights.data() + static_cast<std::ptrdiff_t>(half) * x.cols * kHalf, x.cols,
                   kHalf, y);
      softmax_row(y, kHalf);
    }
  }
}

}  // namespace kvant
