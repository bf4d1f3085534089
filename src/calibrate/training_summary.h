// Summarizes the gain of training by constant.
#pragma once

#include <string>
#include <vector>

#include "base/geometry.h"
#include "transform/constants.h"

namespace kvant {

// The mean over all heads that have the constant `name`. Codebooks: relative squared errors with the initial
// and the final centroids of k-means. Adapters: mean divergence of the attention weights without and with the
// correction, on contexts that they were not trained on.
struct TrainingGain {
  Side side = Side::key;
  std::string name;  // scoped
  int heads = 0;
  int improved = 0;  // heads for which training lowered it; adapters of the others are switched off
  double before = 0;
  double after = 0;
};

// Returns the gains of all trained constants, in a fixed order.
std::vector<TrainingGain> training_gains(const Constants& constants);

}  // namespace kvant
