// Computes how likely a text is for a model with a given cache.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/engine.h"

namespace kvant {

// Returns the natural logarithm of the probability of each token but the first, given the tokens before it:
// [n - 1]. The cache of `plan` is filled as in decoding, token by token. `tokens` is [n] with n >= 1. Returns
// the error of a step that fails.
Result<std::vector<double>> score_tokens(Engine& engine, AttentionBackend& backend, PlacedPlan plan,
                                         std::span<const std::int32_t> tokens);

}  // namespace kvant
