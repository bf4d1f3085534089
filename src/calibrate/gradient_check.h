// Whether gradients can be trusted: model_gradient() is a transformer of its own beside the engine's.
#pragma once

#include <span>

#include "attention/attention.h"
#include "base/result.h"
#include "model/engine.h"

namespace kvant {

// Whether both predict the same after `tokens`: false for a kind of model that model_gradient() doesn't know.
// Errors: a step's.
Result<bool> gradients_fit(Engine& engine, AttentionBackend& backend, std::span<const std::int32_t> tokens,
                           int n_threads);

}  // namespace kvant
