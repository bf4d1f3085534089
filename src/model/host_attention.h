// HostAttention runs a step of a device's graph if the cache lies in host memory. For each layer, the host
// copies rows from the device, attends, and copies the outputs back. Caches for which the device lacks
// kernels or memory run in this way.
#pragma once

#include <optional>
#include <vector>

#include "attention/attention.h"
#include "model/device_graph.h"
#include "model/hparams.h"

namespace kvant {

class HostAttention {
 public:
  // `hparams` must outlive the object.
  HostAttention(const Hparams& hparams, int n_threads) : hparams_(hparams), n_threads_(n_threads) {}

  // Runs all segments of the graph, with attention between them. The graph's rows must be set. The function
  // waits for each layer. Errors of attention go to step.fail().
  Status run(Step& step, AttentionBackend& backend, DeviceGraph& graph);

 private:
  void run_layer(Step& step, AttentionBackend& backend, int layer, DeviceGraph& graph);

  const Hparams& hparams_;
  int n_threads_;
  std::optional<StandingTeam> team_;    // made in the first step
  std::vector<float> q_, k_, v_, out_;  // [n_rows, heads * d] of one layer
};

}  // namespace kvant
