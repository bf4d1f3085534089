// Selects the predictions of a context that count, and compares them with predictions of a changed model. A
// measured sensitivity is the difference between the two models' predictions. Only the last predictions
// count, because early queries read no sealed page.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"

namespace kvant {

// Returns the number of last tokens whose predictions count. The number is half of n_tokens. A smaller number
// is returned if the logits would take more than 256 MiB, but at least 1.
int n_scored_predictions(std::size_t n_tokens, int n_vocab);

// Returns the mean KL divergence, in nats, of the predictions `got` from `expected`. Both arguments are
// logits [n, n_vocab]. Returns the errors of LogitMetrics::add().
Result<double> mean_divergence(std::span<const float> expected, std::span<const float> got, int n_vocab,
                               int n_threads);

}  // namespace kvant
