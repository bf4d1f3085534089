#include "device/cpu/kernels/token_weights.h"

#include <cmath>

namespace kvant {

void weigh_tokens(const ObserverTile& observers, std::span<const PageView> pages, const AttentionRules& rules,
                  TileScratch& scratch, std::span<double> weights) {
  for (const PageView& page : pages) {
    score_page(observers.queries, page, rules, scratch);
    for (int r = 0; r < observers.queries.rows(); ++r) {
      const float* s = scratch.scores.data() + static_cast<std::ptrdiff_t>(r) * kPageTokens;
      for (int t = 0; t < page.n_tokens; ++t) {
        const double weight = std::exp(static_cast<double>(s[t]) - observers.lse[r]);
        // A token that is masked here is a protected row, which another thread may be weighing. Adding 0
        // would be a data race.
        if (weight > 0)
          weights[page.is_protected ? page.protected_tokens[t] : page.first_token + t] += weight;
      }
    }
  }
}

}  // namespace kvant
