// Trains KVLinC's correction adapters of one KV head.
#pragma once

#include <cstdint>
#include <span>

#include "calibrate/adapter_loss.h"

namespace kvant {

struct AdapterOptions {
  int features = kAdapterFeatures;
  int max_steps = 400;
  float learning_rate = 0.01F;  // KVLinC, section 4
  std::uint64_t seed = 0;
};

struct TrainedAdapters {
  AdapterWeights weights;
  bool helps = false;      // else the correction is to be switched off, and the weights mean nothing
  double loss_before = 0;  // on `judged`, without any correction
  double loss_after = 0;   // on `judged`, with these weights; loss_before where they don't help
};

// Adam on one context of `training` a step, in random order, from a start that corrects next to nothing.
// Every few steps the weights are judged on other contexts: the best are kept, and training ends when they
// don't improve any more. All contexts are of one head; n_query_heads: G.
TrainedAdapters train_adapters(std::span<const AdapterContext> training,
                               std::span<const AdapterContext> judged, int n_query_heads,
                               const AdapterOptions& options);

}  // namespace kvant
