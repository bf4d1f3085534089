// Detects logits that are NaN or infinite. Such logits come from a damaged file, or from weights whose
// products overflow, and tokens drawn from such logits would be meaningless.
#pragma once

#include <span>

#include "base/matrix_view.h"
#include "base/result.h"

namespace kvant {

class Engine;

// Returns whether all logits are finite. The check takes a fraction of the time of sampling.
bool are_finite(std::span<const float> logits);

// Returns the error that tells a user that the model's predictions are not numbers.
Error unsound_predictions(const Engine& engine);

// Returns the error of unsound_predictions() if any row has a logit that is not finite.
Status check_logits(const Engine& engine, MatrixView<const float> logits);

}  // namespace kvant
