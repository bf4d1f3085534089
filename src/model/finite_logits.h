// Predictions that are no numbers: of a damaged file, or of weights whose products overflow. Nothing that is
// drawn from them says anything.
#pragma once

#include <span>

#include "base/matrix_view.h"
#include "base/result.h"

namespace kvant {

class Engine;

// Whether none is NaN or infinite. A fraction of the time that drawing from them takes.
bool are_finite(std::span<const float> logits);

// The sentence for a user of that model.
Error unsound_predictions(const Engine& engine);

// Errors: a row has others; that sentence.
Status check_logits(const Engine& engine, MatrixView<const float> logits);

}  // namespace kvant
