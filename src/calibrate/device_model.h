// A differentiable model as graphs on a device, which has the weights: they are expanded to F32 there, a
// layer at a time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "calibrate/differentiable_model.h"
#include "model/compute_device.h"

namespace kvant {

// What a layer stores, K after RoPE: [n_kv_heads, n_rows, head_dim] each.
struct StoredRows {
  std::vector<float> k, v;
  const std::vector<float>& side(Side side) const { return side == Side::key ? k : v; }
};

class DeviceModel : public DifferentiableModel {
 public:
  // forward(), and what the layer stores.
  virtual Status forward_storing(int layer, MatrixView<float> x, StoredRows& stored) = 0;
  // forward() of a layer whose queries read `stored` on sealed pages in place of that side which the layer
  // makes.
  virtual Status forward_reading(int layer, Side side, std::span<const float> stored,
                                 MatrixView<float> x) = 0;
};

// model: with known layers, of an engine on the device; all outlive the result. An error: the device can't
// compute something, or lacks the memory for contexts of n_rows tokens.
Result<std::unique_ptr<DeviceModel>> make_device_model(const ModelParts& model, const ComputeDevice& device,
                                                       int n_rows);

}  // namespace kvant
