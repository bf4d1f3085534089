// Learns the constants of each calibrated transform. One table maps the name of each transform to its
// learner.
#pragma once

#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/matrix_view.h"

namespace kvant {

// TransformSamples holds captured rows of one (layer, KV head, side).
struct TransformSamples {
  Side side = Side::key;
  MatrixView<const float> values;  // [n, d], n > 0; K or V at the input of the transform
  // `keys` and `queries` are set only if the learner reads attention.
  MatrixView<const float> keys;  // [n, d], K of the same tokens, without transforms
  // [m, d], m > 0: queries of the group's heads. For K, the queries are transformed to match K at the
  // transform's input. For V, the queries are not transformed.
  MatrixView<const float> queries;
};

// TransformLearner learns the constants of one kind of transform (TransformKind) from the values at its
// input.
struct TransformLearner {
  const char* kind;
  std::vector<float> (*learn)(const TransformSamples& samples);
  bool reads_attention = false;  // the learner needs keys and queries
};

// Returns the learner of a kind, or null if there is none. The kinds are:
//     smooth  sqrt(max |x_i|) of each channel (VecInfer, section 3.2)
//     scale   the square root of each channel's standard deviation
//     amax    the largest magnitude of each channel
//     mean    each channel's mean
//     pca     the eigenvectors of x^T x
//     oscar   the eigenvectors of Q^T Q for K, and of V^T diag(k^T Q^T Q k) V for V (OSCAR, section 3)
//     nova    the matrix F of NOVA-KV (transform/nova.cc)
const TransformLearner* find_transform_learner(const std::string& kind);

}  // namespace kvant
