// Detects predictions that are NaN or infinite, from a damaged file or from weights whose products overflow.
// Tokens drawn from them would be meaningless.
#pragma once

#include <span>

#include "base/matrix_view.h"
#include "base/result.h"

namespace kvant {

class Engine;

// Returns whether all logits are finite. It takes a fraction of the time of sampling.
bool are_finite(std::span<const float> logits);

// Returns the error for a user of that model.
Error unsound_predictions(const Engine& engine);

// Returns that error if a row has values that are not finite.
Status check_logits(const Engine& engine, MatrixView<const float> logits);

}  // namespace kvant
