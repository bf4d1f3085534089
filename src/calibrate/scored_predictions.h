// Predictions of a context that are held against one another to see what a change of the model does: which
// of them, and by how much they differ.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"

namespace kvant {

// Of n_tokens tokens the last n: the second half, or as many of its end as 256 MiB of logits have room for;
// at least 1.
int n_scored_predictions(std::size_t n_tokens, int n_vocab);

// Mean KL divergence, in nats, of the predictions `got` from `expected`: logits [n, n_vocab] of either.
// Errors: those of LogitMetrics::add().
Result<double> mean_divergence(std::span<const float> expected, std::span<const float> got, int n_vocab,
                               int n_threads);

}  // namespace kvant
