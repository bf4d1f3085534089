// A predictor, fitted to sequences that a model has read.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "compact/predictor.h"

namespace kvant {

struct PredictorText {
  std::vector<std::vector<std::byte>> sequences;  // Cache::export_sequence, of caches of the plan
  std::vector<std::vector<ChannelTurn>> turns;    // [n_layers]: of K, by RoPE
};

// Layers whose pages had all slid out of their windows are not predicted. By least squares with a small
// penalty on the weights (ridge regression, Hoerl and Kennard 1970), of the values as their pages have them.
// Layers are spread over threads. An error: no sealed pages.
Result<Predictor> learn_predictor(const Plan& plan, const PredictorText& text, int n_threads);

}  // namespace kvant
