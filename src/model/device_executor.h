// DeviceExecutor runs the segments of a graph on the device's ggml backend. At attention sites, the executor
// calls the device's page library, or the host if the cache lies in host memory.
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
  // `hparams` and `weights` must outlive the object. The weights lie in device memory. Attention on the host
  // uses n_threads threads.
  DeviceExecutor(const Hparams& hparams, const Weights& weights, std::shared_ptr<ComputeDevice> device,
                 DeviceProducts products, int n_threads);

  // Runs a step. If the step's cache keeps its pages on the device, only the observer of `backend` is called.
  // If the pages lie in host memory, `backend` attends there; models with delta nets do not support that.
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
  // Runs the attention of one layer, and shows the observer the rows that it must get at once. A layer with
  // has_kv = false attends to the cache of another layer, `layer`.
  Status attend(Step& step, RowObserver* observer, const DeviceGraph& graph,
                const LayerTransforms& transforms, int layer, bool has_kv);
  // Notes which rows the observer must get after all layers have attended.
  void show_later(Step& step, RowObserver& observer, const DeviceGraph& graph,
                  const PlanTransforms& transforms);

  const Hparams& hparams_;
  const Weights& weights_;
  std::shared_ptr<ComputeDevice> device_;
  DeviceProducts products_;
  DeviceAttention attention_;
  HostAttention host_attention_;
  DeviceStates states_;
  RowValues values_;  // values of the current step
  struct ShownLater {
    int layer;
    int nth_queries;  // the index among the kept queries, or -1 if the observer does not want queries
  };
  ObservedRows observed_;
  std::vector<ShownLater> shown_later_;  // rows of the current step
  int n_kept_ = 0;
  std::vector<std::unique_ptr<PlanTransforms>> transforms_;  // the newest comes first
  std::vector<std::unique_ptr<DeviceGraph>> graphs_;         // the newest comes first; graphs refer to
                                                             // transforms_
};

}  // namespace kvant
