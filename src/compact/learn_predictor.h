// Fits a predictor to sequences that a model has read. Sessions are then stored with this predictor in
// compact form.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "compact/predictor.h"

namespace kvant {

struct PredictorText {
  std::vector<std::vector<std::byte>> sequences;  // Results of Cache::export_sequence for caches of the plan.
  std::vector<std::vector<ChannelTurn>> turns;    // [n_layers]: RoPE's rotations of K
};

// Fits the weights by least squares with a small penalty (ridge regression, Hoerl and Kennard 1970) on the
// values as their pages store them. Layers whose pages have all left their windows are not predicted. Threads
// share the layers. Returns an error if there are no sealed pages.
Result<Predictor> learn_predictor(const Plan& plan, const PredictorText& text, int n_threads);

}  // namespace kvant
