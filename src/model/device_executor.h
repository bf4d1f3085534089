// DeviceExecutor: the executor of a device: segments of a graph on its ggml backend, attention sites by its
// library, or by the host where caches lie in its memory.
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
  // hparams and weights must outlive it; weights lie in the device's memory. n_threads: of the host's
  // attention.
  DeviceExecutor(const Hparams& hparams, const Weights& weights, std::shared_ptr<ComputeDevice> device,
                 DeviceProducts products, int n_threads);

  // Where the step's cache keeps its pages on the device, of the backend its observer alone is called. Where
  // it keeps them in host memory, the backend attends there; of models without delta nets.
  Status run(Step& step, AttentionBackend& backend, const ForwardRows& rows,
             MatrixView<float> logits) override;

 private:
  Result<const PlanTransforms*> transforms_for(const Step& step);
  // Segments and attention sites in turn.
  Status run_on_device(Step& step, AttentionBackend& backend, DeviceGraph& graph,
                       const PlanTransforms& transforms);
  GraphShape shape_of(const Step& step, const ForwardRows& rows) const;
  Result<DeviceGraph*> graph_for(const PlanTransforms& transforms, const GraphShape& shape);
  void find_values(const ForwardRows& rows);
  // Rows of an embedding table, multiplied by `scale`.
  static void look_up(const ggml_tensor& table, std::span<const std::int32_t> tokens, float scale,
                      std::vector<float>& rows);
  // One layer's attention, and what an observer is to see of it now. has_kv: not of a layer that attends to
  // another one's cache, `layer`.
  Status attend(Step& step, RowObserver* observer, const DeviceGraph& graph,
                const LayerTransforms& transforms, int layer, bool has_kv);
  // What it is to see when all layers have attended.
  void show_later(Step& step, RowObserver& observer, const DeviceGraph& graph,
                  const PlanTransforms& transforms);

  const Hparams& hparams_;
  const Weights& weights_;
  std::shared_ptr<ComputeDevice> device_;
  DeviceProducts products_;
  DeviceAttention attention_;
  HostAttention host_attention_;
  DeviceStates states_;
  RowValues values_;  // of the step
  struct ShownLater {
    int layer;
    int nth_queries;  // of those that were kept; -1: it wants none
  };
  ObservedRows observed_;
  std::vector<ShownLater> shown_later_;  // of the step
  int n_kept_ = 0;
  std::vector<std::unique_ptr<PlanTransforms>> transforms_;  // the latest first
  std::vector<std::unique_ptr<DeviceGraph>> graphs_;         // likewise; they refer to transforms_
};

}  // namespace kvant
