// Whether gradients can be trusted: model_gradient() is a transformer of its own beside the engine's.
#pragma once

#include <span>

#include "attention/attention.h"
#include "base/result.h"
#include "calibrate/differentiable_model.h"
#include "model/engine.h"

namespace kvant {

// Whether the model, differentiated, predicts the same after `tokens` as the engine, but for what this
// rounds: false for a kind that model_gradient() doesn't know. What rounding does to a model is seen where
// positions are shifted, which RoPE cancels: from there on everything is rounded otherwise. Errors: a step's,
// or the model's.
Result<bool> gradients_fit(Engine& engine, AttentionBackend& backend, DifferentiableModel& model,
                           std::span<const std::int32_t> tokens, int n_threads);

}  // namespace kvant
