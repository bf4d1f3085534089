// VisibleTokens: which tokens each row of a step sees sealed, and which in the tail (design section 2).
#pragma once

#include <vector>

#include "cache/cache.h"
#include "cache/page_counts.h"

namespace kvant {

// Of the tokens of a slice, in order. n_sealed: pages that are sealed when the step begins.
std::vector<VisibleTokens> visible_tokens(int first_token, const StepSlice& slice, int n_sealed, int window,
                                          int prefill);
// Of a slice of a step whose pages lie on a device, in a layer.
std::vector<VisibleTokens> visible_tokens(const Step& step, int slice, int layer);

}  // namespace kvant
