#include "device/cpu/kernels/score_rules.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/simd_clones.h"

namespace kvant {
namespace {

// Holds the range [begin, end) of a page's tokens that a query sees, apart from masked tokens.
struct Visible {
  int begin, end;
};

Visible visible(const PageView& page, int token, int sliding_window) {
  if (page.is_protected) return {0, page.n_tokens};
  const int begin = sliding_window > 0 ? token + 1 - sliding_window - page.first_token : 0;
  return {std::clamp(begin, 0, page.n_tokens), std::clamp(token + 1 - page.first_token, 0, page.n_tokens)};
}

// Removes masked tokens, and tokens that query `token` may not see, from the scores.
void mask_row(const PageView& page, int token, int sliding_window, float* scores) {
  const auto [begin, end] = visible(page, token, sliding_window);
  std::fill(scores, scores + begin, kUnseen);
  std::fill(scores + end, scores + page.n_tokens, kUnseen);
  if (page.is_protected || page.masked.empty()) return;
  for (int t = 0; t < page.n_tokens; ++t) {
    if (page.masked.test(t)) scores[t] = kUnseen;
  }
}

// Counts the masked tokens among the visible tokens.
int masked_tokens(const PageView& page, Visible seen) {
  if (page.is_protected || page.masked.empty()) return 0;
  int n = 0;
  for (int t = seen.begin; t < seen.end; ++t) n += page.masked.test(t) ? 1 : 0;
  return n;
}

// Adds one more head to largest[t] and mass[t]. The head's weights are multiplied by `reciprocal`.
KVANT_SIMD_CLONES void add_head(const float* weights, int n, float reciprocal, float* largest, float* mass) {
  for (int t = 0; t < n; ++t) {
    const float weight = weights[t] * reciprocal;
    largest[t] = weight > largest[t] ? weight : largest[t];
    mass[t] += weight;
  }
}

struct Skipped {
  int tokens = 0;
  float mass = 0;
};

// Finds the tokens whose largest weight is below tau. Sets largest[t] to 0 for skipped tokens, and to 1 for
// all others.
KVANT_SIMD_CLONES Skipped find_skipped(float* largest, const float* mass, int n, float tau) {
  float masses[kReductionLanes] = {};
  int read = 0, t = 0;
  for (; t + kReductionLanes <= n; t += kReductionLanes) {
    for (int lane = 0; lane < kReductionLanes; ++lane) {
      const bool reads = largest[t + lane] >= tau;
      masses[lane] += reads ? 0.0F : mass[t + lane];
      largest[t + lane] = reads ? 1.0F : 0.0F;
      read += reads ? 1 : 0;
    }
  }
  for (; t < n; ++t) {
    const bool reads = largest[t] >= tau;
    masses[0] += reads ? 0.0F : mass[t];
    largest[t] = reads ? 1.0F : 0.0F;
    read += reads ? 1 : 0;
  }
  Skipped skipped{n - read, 0};
  for (const float m : masses) skipped.mass += m;
  return skipped;
}

KVANT_SIMD_CLONES void multiply_row(float* y, const float* x, int n) {
  for (int i = 0; i < n; ++i) y[i] *= x[i];
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

bool skip_tokens(const QueryTile& tile, const PageView& page, const AttentionRules& rules,
                 const SkipRule& rule, MatrixView<float> weights, SkipCount& count) {
  std::array<float, kPageTokens> largest, mass;
  bool any_read = false;
  for (int i = 0; i < tile.n_queries; ++i) {
    const Visible seen = visible(page, tile.token(i), rules.sliding_window);
    const int n = std::max(0, seen.end - seen.begin);
    largest.fill(0);
    mass.fill(0);
    for (int r = i; r < tile.rows(); r += tile.n_queries)
      add_head(weights.row(r) + seen.begin, n, 1 / rule.total->sum[r], largest.data(), mass.data());
    const Skipped skipped = find_skipped(largest.data(), mass.data(), n, static_cast<float>(rule.tau));
    // find_skipped() counts masked tokens, because they have no weight. They are neither seen nor skipped.
    const int n_masked = masked_tokens(page, seen);
    count.seen += n - n_masked;
    count.skipped += skipped.tokens - n_masked;
    count.mass += skipped.mass / static_cast<float>(tile.group);
    any_read = any_read || skipped.tokens < n;
    if (skipped.tokens == 0) continue;
    for (int r = i; r < tile.rows(); r += tile.n_queries)
      multiply_row(weights.row(r) + seen.begin, largest.data(), n);
  }
  return any_read;
}

}  // namespace kvant
