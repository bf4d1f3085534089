#include "attention/visible_tokens.h"

#include <algorithm>

#include "cache/page_counts.h"
#include "cache/schedule.h"

namespace kvant {

std::vector<VisibleTokens> visible_tokens(int first_token, const StepSlice& slice, int n_sealed, int window,
                                          int prefill) {
  int sealed = n_sealed;
  const auto seal = [&](int point) {
    if (point >= 0) sealed = std::max(sealed, sealed_pages(point, window));
  };
  std::vector<VisibleTokens> visible;
  visible.reserve(slice.n_tokens);
  seal(seal_point_before(first_token, slice.is_prompt));
  for (const Tile& tile : schedule(first_token, slice.n_tokens, {slice.is_prompt, prefill})) {
    for (int t = tile.query_first; t < tile.query_end; ++t)
      visible.push_back({sealed, t + 1 - sealed * kPageTokens});
    seal(tile.seal_point);
  }
  return visible;
}

std::vector<VisibleTokens> visible_tokens(const Step& step, int slice, int layer) {
  const Plan& plan = step.plan();
  return visible_tokens(step.first_token(slice), step.slices()[slice], step.ledger(slice, layer).n_sealed(),
                        device_window(plan), plan.recipe.prefill);
}

}  // namespace kvant
