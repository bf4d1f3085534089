// Learns the constants of each calibrated transform.
#pragma once

#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/matrix_view.h"

namespace kvant {

// Captured rows of one (layer, KV head, side).
struct TransformSamples {
  Side side = Side::key;
  MatrixView<const float> values;  // [n, d], n > 0: K or V at the input of the step
  // Only if the learner reads attention:
  MatrixView<const float> keys;  // [n, d]: the same tokens' K, untransformed
  MatrixView<const float>
      queries;  // [m, d], m > 0: of the group's heads; for K as they meet it at the step, for V untransformed
};

// Learns the constants of one kind of step (TransformKind) from the values at its input.
struct TransformLearner {
  const char* kind;
  std::vector<float> (*learn)(const TransformSamples& samples);
  bool reads_attention = false;  // needs keys and queries
};

// Returns the learner of a kind, or null.
//   smooth  sqrt(max |x_i|) of each channel (VecInfer, section 3.2)
//   scale   the square root of each channel's standard deviation
//   mean    each channel's mean
//   pca     the eigenvectors of x^T x
//   oscar   those of Q^T Q for K, and of V^T diag(k^T Q^T Q k) V for V (OSCAR, section 3)
const TransformLearner* find_transform_learner(const std::string& kind);

}  // namespace kvant
