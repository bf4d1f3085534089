#include "attention/score_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvant {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// Takes protected tokens, and those that query `token` may not see, out of its scores.
void mask_row(const PageView& page, int token, int sliding_window, float* scores) {
  if (page.kept) return;
  const int end = std::clamp(token + 1 - page.first_token, 0, page.n_tokens);
  std::fill(scores + end, scores + page.n_tokens, kMasked);
  if (sliding_window > 0) {
    const int begin = std::clamp(token + 1 - sliding_window - page.first_token, 0, page.n_tokens);
    std::fill(scores, scores + begin, kMasked);
  }
  if (page.masked.empty()) return;
  for (int t = 0; t < page.n_tokens; ++t) {
    if (page.masked.test(t)) scores[t] = kMasked;
  }
}

bool sees(const PageView& page, int t, int token, int sliding_window) {
  if (page.kept) return true;
  const int distance = token - (page.first_token + t);
  return distance >= 0 && (sliding_window == 0 || distance < sliding_window) && !page.masked.test(t);
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
  for (int i = 0; i < tile.n_queries; ++i) {
    for (int t = 0; t < page.n_tokens; ++t) {
      if (!sees(page, t, tile.token(i), rules.sliding_window)) continue;
      bool small = true;
      double mass = 0;
      for (int r = i; r < tile.rows(); r += tile.n_queries) {
        const double weight = weights.row(r)[t] / static_cast<double>(rule.total->sum[r]);
        small = small && weight < rule.tau;
        mass += weight;
      }
      ++count.seen;
      if (!small) continue;
      ++count.skipped;
      count.mass += mass / tile.group;
      for (int r = i; r < tile.rows(); r += tile.n_queries) weights.row(r)[t] = 0;
    }
  }
}

}  // namespace kvant
