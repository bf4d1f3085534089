// Checks whether gradients can be trusted. model_gradient() computes the transformer with code of its own,
// which might not know a kind of model that the engine runs.
#pragma once

#include <span>

#include "attention/attention.h"
#include "base/result.h"
#include "calibrate/differentiable_model.h"
#include "model/engine.h"

namespace kvant {

// Returns whether the differentiable model gives the same predictions after `tokens` as the engine, apart
// from rounding. A wrong result shows that model_gradient() does not know the kind of model. The effect of
// rounding is measured by shifting all positions: RoPE cancels the shift, but all values are rounded
// differently. Returns errors of a step, and the model's.
Result<bool> gradients_fit(Engine& engine, AttentionBackend& backend, DifferentiableModel& model,
                           std::span<const std::int32_t> tokens, int n_threads);

}  // namespace kvant
