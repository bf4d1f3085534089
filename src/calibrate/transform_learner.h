// What the constants of each calibrated transform are learned from.
#pragma once

#include <string>
#include <vector>

#include "base/matrix_view.h"

namespace kvant {

// How the constants of one kind of step (TransformKind) come from the values that reach it.
struct TransformLearner {
  const char* kind;
  std::vector<float> (*learn)(MatrixView<const float> values);  // values: [n, d], n > 0
};

// The learner of a kind, or null.
//   smooth  sqrt(max |x_i|) of each channel (VecInfer, section 3.2)
//   scale   the square root of each channel's standard deviation
//   mean    each channel's mean
//   pca     principal_directions.h
const TransformLearner* find_transform_learner(const std::string& kind);

}  // namespace kvant
