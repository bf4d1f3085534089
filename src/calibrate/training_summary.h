// Summarizes how much training has gained, by constant. The summary shows which codebooks and adapters are
// worth their cost.
#pragma once

#include <string>
#include <vector>

#include "base/geometry.h"
#include "transform/constants.h"

namespace kvant {

// TrainingGain is the mean over all heads that have the constant `name`. For codebooks, the gain compares the
// relative squared errors of the initial and final centroids of k-means. For adapters, the gain compares the
// mean divergence of the attention weights without and with the correction, on contexts that were not used
// for training.
struct TrainingGain {
  Side side = Side::key;
  std::string name;  // the scoped name
  int heads = 0;
  // Training lowered the value in this many heads. Adapters of all other heads are switched off.
  int improved = 0;
  double before = 0;
  double after = 0;
};

// Returns the gains of all trained constants, in a fixed order.
std::vector<TrainingGain> training_gains(const Constants& constants);

}  // namespace kvant
