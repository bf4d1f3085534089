#include "attention/score_rules.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvant {
namespace {

// The tokens of a page that a query sees, but for masked ones: [begin, end).
struct Visible {
  int begin, end;
};

Visible visible(const PageView& page, int token, int sliding_window) {
  if (page.kept) return {0, page.n_tokens};
  const int begin = sliding_window > 0 ? token + 1 - sliding_window - page.first_token : 0;
  return {std::clamp(begin, 0, page.n_tokens), std::clamp(token + 1 - page.first_token, 0, page.n_tokens)};
}

// Takes protected tokens, and those that query `token` may not see, out of its scores.
void mask_row(const PageView& page, int token, int sliding_window, float* scores) {
  const auto [begin, end] = visible(page, token, sliding_window);
  std::fill(scores, scores + begin, kUnseen);
  std::fill(scores + end, scores + page.n_tokens, kUnseen);
  if (page.kept || page.masked.empty()) return;
  for (int t = 0; t < page.n_tokens; ++t) {
    if (page.masked.test(t)) scores[t] = kUnseen;
  }
}

}  // namespace

void apply_rules(const QueryTile& tile, const PageView& page, const AttentionRules& rules, int r,
                 float* scores) {
  for (int t = 0; t < page.n_tokens && !tile.offset.empty(); ++t) scores[t] += tile.offset[r];
  for (int t = 0; t < page.n_tokens && rules.softcap > 0; ++t) {
    scores[t] = rules.softcap * std::tanh(scores[t] / rules.softcap);
  }
  mask_row(page, tile.token(r), rules.sliding_window, scores);
}

void skip_tokens(const QueryTile& tile, const PageView& page, const AttentionRules& rules,
                 const SkipRule& rule, MatrixView<float> weights, SkipCount& count) {
  std::array<float, kPageTokens> largest, mass;
  for (int i = 0; i < tile.n_queries; ++i) {
    largest.fill(0);
    mass.fill(0);
    for (int r = i; r < tile.rows(); r += tile.n_queries) {
      const float* row = weights.row(r);
      const float reciprocal = 1 / rule.total->sum[r];
      for (int t = 0; t < page.n_tokens; ++t) {
        const float weight = row[t] * reciprocal;
        largest[t] = weight > largest[t] ? weight : largest[t];
        mass[t] += weight;
      }
    }
    const auto [begin, end] = visible(page, tile.token(i), rules.sliding_window);
    for (int t = begin; t < end; ++t) {
      if (!page.kept && page.masked.test(t)) continue;
      ++count.seen;
      if (largest[t] >= rule.tau) continue;
      ++count.skipped;
      count.mass += mass[t] / static_cast<float>(tile.group);
      for (int r = i; r < tile.rows(); r += tile.n_queries) weights.row(r)[t] = 0;
    }
  }
}

}  // namespace kvant
