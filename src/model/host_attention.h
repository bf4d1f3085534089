// HostAttention: a step of a device's graph whose cache lies in host memory: rows come there layer by layer,
// the host attends, and what it has made goes back. For what a device has no kernels for, and for caches that
// are larger than its memory.
#pragma once

#include <optional>
#include <vector>

#include "attention/attention.h"
#include "model/device_graph.h"
#include "model/hparams.h"

namespace kvant {

class HostAttention {
 public:
  // hparams outlives it.
  HostAttention(const Hparams& hparams, int n_threads) : hparams_(hparams), n_threads_(n_threads) {}

  // All segments of the graph, whose rows have been set, and attention between them; waits for each layer.
  // Errors of attention go to step.fail().
  Status run(Step& step, AttentionBackend& backend, DeviceGraph& graph);

 private:
  void run_layer(Step& step, AttentionBackend& backend, int layer, DeviceGraph& graph);

  const Hparams& hparams_;
  int n_threads_;
  std::optional<StandingTeam> team_;    // from the first step on
  std::vector<float> q_, k_, v_, out_;  // of a layer: [n_rows, heads * d]
};

}  // namespace kvant
