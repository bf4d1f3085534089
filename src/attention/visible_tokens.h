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

// What a window of so many tokens leaves of what a row sees, the last token of which is `token`.
struct WindowedTokens {
  int first_page = 0;                     // of the sequence
  int sealed_pages = 0, tail_tokens = 0;  // from there on
  int hidden_tokens = 0;                  // of that page
};
WindowedTokens within_window(const VisibleTokens& visible, int token, int sliding_window);

}  // namespace kvant
