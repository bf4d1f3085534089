// Trains KVLinC's correction adapters for one KV head. Contexts that are not used for training decide when to
// stop, and whether the adapters help the head at all.
#pragma once

#include <cstdint>
#include <span>

#include "calibrate/adapter_losses.h"

namespace kvant {

struct AdapterOptions {
  int features = kAdapterFeatures;
  int max_steps = 400;
  bool ends_early = true;       // training ends when the loss on `judged` no longer falls
  int groups = 1;               // contexts of a step, whose gradients are averaged
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

// Contexts with this many queries evaluate the weights during the training.
inline constexpr int kMostJudgedQueries = 2048;

// Trains the adapters of one head with Adam. Training starts from weights that correct almost nothing, and
// each step uses contexts of `training` in random order. Every few steps, contexts of `judged` evaluate the
// weights, and the result has the weights of the smallest loss. If `judged`
// has more than kMostJudgedQueries queries, the remaining contexts decide whether the weights help.
// n_query_heads is G. Returns an error if a loss cannot be computed.
Result<TrainedAdapters> train_adapters(std::span<const AdapterContext> training,
                                       std::span<const AdapterContext> judged, int n_query_heads,
                                       const AdapterOptions& options, const MakeAdapterLosses& make_losses);
// Trains on the CPU.
TrainedAdapters train_adapters(std::span<const AdapterContext> training,
                               std::span<const AdapterContext> judged, int n_query_heads,
                               const AdapterOptions& options);

}  // namespace kvant
