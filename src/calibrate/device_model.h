// A differentiable model as graphs on a device, which has the weights: they are expanded to F32 there, a
// layer at a time.
#pragma once

#include <memory>

#include "base/result.h"
#include "calibrate/differentiable_model.h"
#include "model/compute_device.h"

namespace kvant {

// model: with known layers, of an engine on the device; all outlive the result. An error: the device can't
// compute something, or lacks the memory for contexts of n_rows tokens.
Result<std::unique_ptr<DifferentiableModel>> make_device_model(const ModelParts& model,
                                                               const ComputeDevice& device, int n_rows);

}  // namespace kvant
