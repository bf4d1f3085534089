// How likely a model finds a text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/engine.h"

namespace kvant {

// The natural logarithm of the probability of each token but the first after those before it, [n - 1], on a
// cache of `plan` that is filled as in decoding, token by token. tokens: [n], n >= 1. Errors: from a step.
Result<std::vector<double>> score_tokens(Engine& engine, AttentionBackend& backend, PlacedPlan plan,
                                         std::span<const std::int32_t> tokens);

}  // namespace kvant
