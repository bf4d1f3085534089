// ObservedRows copies the rows of one layer's attention from a device to host memory, without the transforms
// of the recipe. Calibration captures these rows, so it works the same on devices and on the CPU.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "attention/attention.h"
#include "attention/device_buffer.h"
#include "model/device_graph.h"

namespace kvant {

class ObservedRows {
 public:
  explicit ObservedRows(std::shared_ptr<PageDevice> device) : device_(device), kept_(std::move(device)) {}

  // Reads queries, keys and values of a layer whose segment was started. Call this before attention.
  void read_inputs(const DeviceGraph& graph, const Plan& plan, int layer, const LayerTransforms& transforms);
  // Reads the outputs after attention, if `shown` asks for them.
  void read_outputs(const DeviceGraph& graph, const Plan& plan, int layer, const LayerTransforms& transforms,
                    ShownRows shown);

  // Keeps a layer's queries on the device until the next step. Call this before the library's attention. This
  // step has already kept the queries of n layers. Returns an error if memory is exhausted or the device has
  // failed.
  Status keep_queries(const DeviceGraph& graph, const Plan& plan, int n);
  // Reads the queries that this step kept as the nth.
  void read_kept(const DeviceGraph& graph, const Plan& plan, int layer, const LayerTransforms& transforms,
                 int nth);
  // Forgets all rows.
  void clear() { set_rows(0); }

  // Returns the rows that were read since clear().
  LayerRows rows();

 private:
  MatrixView<float> view(std::vector<float>& values) const;
  void set_rows(int n);
  void undo_query_transforms(const Plan& plan, int layer, const LayerTransforms& transforms);

  std::shared_ptr<PageDevice> device_;
  DeviceBuffer kept_;  // the queries of the kept layers, one block per layer
  int n_rows_ = 0;
  std::vector<float> q_, k_, v_, out_;
};

}  // namespace kvant
