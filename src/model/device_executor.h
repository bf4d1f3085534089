// DeviceExecutor is the executor of a device. It runs segments of a graph on the device's ggml backend. At
// attention sites it calls the device's library, or the host if the caches lie in host memory.
#pragma once

#include <memory>
#include <vector>

#include "attention/device_attention.h"
#include "model/compute_device.h"
#include "model/device_graph.h"
#include "model/device_states.h"
#include "model/executor.h"
#include "model/host_attention.h"
#include "model/observed_rows.h"

namespace kvant {

class DeviceExecutor final : public Executor {
 public:
  // `hparams` and `weights` must outlive it; the weights lie in device memory. n_threads is for the host's
  // attention.
  DeviceExecutor(const Hparams& hparams, const Weights& weights, std::shared_ptr<ComputeDevice> device,
                 DeviceProducts products, int n_threads);

  // If the step's cache keeps its pages on the device, only the backend's observer is called. If it keeps
  // them in host memory, the backend attends there, which models with delta nets do not support.
  Status run(Step& step, AttentionBackend& backend, const ForwardRows& rows,
             MatrixView<float> logits) override;

 private:
  Result<const PlanTransforms*> transforms_for(const Step& step);
  // Runs segments and attention sites in turn.
  Status run_on_device(Step& step, AttentionBackend& backend, DeviceGraph& graph,
                       const PlanTransforms& transforms);
  GraphShape shape_of(const Step& step, const ForwardRows& rows) const;
  Result<DeviceGraph*> graph_for(const PlanTransforms& transforms, const GraphShape& shape);
  void find_values(const ForwardRows& rows);
  // Looks up rows of an embedding table and multiplies them by `scale`.
  static void look_up(const ggml_tensor& table, std::span<const std::int32_t> tokens, float scale,
                      std::vector<float>& rows);
  // Runs one layer's attention, and shows the observer what it must see at once. has_kv is false for a layer
  // that attends to the cache of another one, `layer`.
  Status attend(Step& step, RowObserver* observer, const DeviceGraph& graph,
                const LayerTransforms& transforms, int layer, bool has_kv);
  // Notes what the observer will see when all layers have attended.
  void show_later(Step& step, RowObserver& observer, const DeviceGraph& graph,
                  const PlanTransforms& transforms);

  const Hparams& hparams_;
  const Weights& weights_;
  std::shared_ptr<ComputeDevice> device_;
  DeviceProducts products_;
  DeviceAttention attention_;
  HostAttention host_attention_;
  DeviceStates states_;
  RowValues values_;  // values of the present step
  struct ShownLater {
    int layer;
    int nth_queries;  // index among the kept queries; -1: it wants none
  };
  ObservedRows observed_;
  std::vector<ShownLater> shown_later_;  // for the present step
  int n_kept_ = 0;
  std::vector<std::unique_ptr<PlanTransforms>> transforms_;  // newest first
  std::vector<std::unique_ptr<DeviceGraph>> graphs_;         // newest first; they refer to transforms_
};

}  // namespace kvant
