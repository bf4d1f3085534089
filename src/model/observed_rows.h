// ObservedRows: the rows of one layer's attention on a device, copied to host memory as the model made them.
#pragma once

#include <vector>

#include "attention/attention.h"
#include "model/device_graph.h"

namespace kvant {

class ObservedRows {
 public:
  // Of a layer whose segment was started, before it attends.
  void read_inputs(const DeviceGraph& graph, const Plan& plan, int layer, const LayerTransforms& transforms,
                   ShownRows shown);
  // And after it.
  void read_outputs(const DeviceGraph& graph, const Plan& plan, int layer, const LayerTransforms& transforms,
                    ShownRows shown);

  // What was read since.
  LayerRows rows();

 private:
  MatrixView<float> view(std::vector<float>& values) const;

  int n_rows_ = 0;
  std::vector<float> q_, k_, v_, out_;
};

}  // namespace kvant
