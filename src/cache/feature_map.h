// The feature map of KVLinC's linear correction (KVLinC section 3, eq. 6): phi(x) = [softmax(x W1), softmax(x
// W2)].
#pragma once

#include <span>

#include "base/matrix_view.h"
#include "recipe/constant_needs.h"

namespace kvant {

// D: features of phi, half from each matrix.
inline constexpr int kCorrectionFeatures = kAdapterFeatures;

// The number of weights of one map for head size d: W1 and W2, each [d, D / 2].
inline constexpr std::size_t feature_map_weights(int head_dim) {
  return static_cast<std::size_t>(head_dim) * kCorrectionFeatures;
}

// features[r] = phi(x_r). weights: W1 then W2, row-major; x: [n, d]; features: [n, D].
void map_features(std::span<const float> weights, MatrixView<const float> x, MatrixView<float> features);

}  // namespace kvant
