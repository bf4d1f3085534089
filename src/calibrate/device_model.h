// A differentiable model as graphs on a device, which has the weights: they are expanded to F32 there, a
// layer at a time.
#pragma once

#include <memory>
#include <span>

#include "base/result.h"
#include "calibrate/differentiable_model.h"
#include "model/compute_device.h"

namespace kvant {

class DeviceModel : public DifferentiableModel {
 public:
  // forward() of a layer whose queries read `stored` on sealed pages in place of the K (after RoPE) or V that
  // the layer makes. stored: [n_kv_heads, n_rows, head_dim].
  virtual Status forward_reading(int layer, Side side, std::span<const float> stored,
                                 MatrixView<float> x) = 0;
};

// model: with known layers, of an engine on the device; all outlive the result. An error: the device can't
// compute something, or lacks the memory for contexts of n_rows tokens.
Result<std::unique_ptr<DeviceModel>> make_device_model(const ModelParts& model, const ComputeDevice& device,
                                                       int n_rows);

}  // namespace kvant
