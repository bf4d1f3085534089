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
  bool helps = false;      // if false, the correction is to be switched off, and the weights are meaningless
  double loss_before = 0;  // on `judged`, without any correction
  double loss_after = 0;   // on `judged`, with these weights; loss_before if they don't help
};

// Runs Adam with one context of `training` per step, in random order, from a start that corrects almost
// nothing. Every few steps the weights are evaluated on the contexts `judged`. The best weights are kept, and
// training ends when they stop improving. All contexts are of one head; n_query_heads: G.
TrainedAdapters train_adapters(std::span<const AdapterContext> training,
                               std::span<const AdapterContext> judged, int n_query_heads,
                               const AdapterOptions& options);

}  // namespace kvant
