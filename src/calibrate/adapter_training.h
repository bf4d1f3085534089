// Trains KVLinC's correction adapters of one KV head.
#pragma once

#include <cstdint>
#include <span>

#include "calibrate/adapter_loss.h"

namespace kvant {

struct AdapterOptions {
  int features = kAdapterFeatures;
  int most_steps = 300;
  float learning_rate = 0.01F;  // KVLinC, section 4
  std::uint64_t seed = 0;
};

struct TrainedAdapters {
  AdapterWeights weights;
  double loss_before = 0;  // on `judged`, without any correction
  double loss_after = 0;   // on `judged`, with these weights
};

// Adam on one context of `training` a step, in turn. Every few steps the weights are judged on other
// contexts: the best are kept, and training ends when they don't improve any more. All contexts are of one
// head; n_query_heads: G.
TrainedAdapters train_adapters(std::span<const AdapterContext> training,
                               std::span<const AdapterContext> judged, int n_query_heads,
                               const AdapterOptions& options);

}  // namespace kvant
