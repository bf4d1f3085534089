// Trains KVLinC's correction adapters for one KV head. Contexts that are not used for training decide when to
// stop, and whether the adapters help the head at all.
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
  bool helps = false;      // if false, the correction must be switched off, and the weights are
                           // meaningless
  double loss_before = 0;  // the loss on `judged` without any correction
  double loss_after = 0;   // the loss on `judged` with the trained weights; loss_before if the weights do not
                           // help
};

// Trains the adapters of one head with Adam. Training starts from weights that correct almost nothing, and
// each step uses one context of `training` in random order. Every few steps, the contexts `judged` evaluate
// the weights. The result has the best weights, and training ends when the loss no longer improves.
// n_query_heads is G.
TrainedAdapters train_adapters(std::span<const AdapterContext> training,
                               std::span<const AdapterContext> judged, int n_query_heads,
                               const AdapterOptions& options);

}  // namespace kvant
