// Selects and compares a context's predictions to measure the effect of a change of the model.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"

namespace kvant {

// Returns n, the number of last tokens whose predictions count: half of n_tokens, or as many as 256 MiB of
// logits have room for; at least 1.
int n_scored_predictions(std::size_t n_tokens, int n_vocab);

// Returns the mean KL divergence, in nats, of the predictions `got` from `expected`; both are logits [n,
// n_vocab]. Errors: those of LogitMetrics::add().
Result<double> mean_divergence(std::span<const float> expected, std::span<const float> got, int n_vocab,
                               int n_threads);

}  // namespace kvant
