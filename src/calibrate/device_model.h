// Runs a differentiable model as graphs on a device, which holds the weights. The graphs expand the weights
// to F32, one layer at a time.
#pragma once

#include <memory>

#include "base/result.h"
#include "calibrate/differentiable_model.h"
#include "model/compute_device.h"

namespace kvant {

// Makes the model. `model` must have known layers and belong to an engine on the device; both must outlive
// the result. Returns an error if the device cannot compute something, or lacks the memory for contexts of
// n_rows tokens.
Result<std::unique_ptr<DifferentiableModel>> make_device_model(const ModelParts& model,
                                                               const ComputeDevice& device, int n_rows);

}  // namespace kvant
