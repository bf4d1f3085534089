// UploadedAttention: attention on a device to rows that lie in host memory, for measurements: it waits for
// each layer.
#pragma once

#include <memory>
#include <vector>

#include "attention/attention.h"
#include "attention/device_attention.h"
#include "attention/device_buffer.h"

namespace kvant {

class UploadedAttention {
 public:
  explicit UploadedAttention(std::shared_ptr<PageDevice> device);

  // As DeviceAttention's. The plan's transforms are made on the host.
  Status begin(Step& step);
  // Writes `out`. Failures go to step.fail(); `out` is then undefined.
  void run_layer(Step& step, int layer, const LayerRows& rows);

 private:
  std::shared_ptr<PageDevice> device_;
  DeviceAttention attention_;
  DeviceBuffer rows_;  // q, k, v and the output of a layer
  std::vector<float> transformed_;
};

}  // namespace kvant
