// Gives tests of protection and eviction tokens whose scores are far apart and equal for every query, so
// rounding decides nothing. Also computes vertical scores (VQuant equation 6) from their definition.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "attention/attention_fixture.h"

namespace kvant::testing::graded {

inline constexpr int kSize = 16;  // channels
inline constexpr int kGroup = 2;
inline constexpr int kTokens = 900;
// Channels 0 .. 9 of K hold the bits of a token's level, which BF16 represents exactly.
inline constexpr int kBits = 10;
inline constexpr double kStep = 0.012;
// With kSeed, no two scores are close to each other at a choice.
inline constexpr unsigned kSeed = 3;
// Queries ignore channel kOutlier.
inline constexpr int kOutlier = 12;

// Returns a token's level among kTokens levels. No two tokens of a head share a level.
inline int level(int kv_head, int token) {
  static const std::vector<std::vector<int>> levels = [] {
    std::vector<std::vector<int>> all(2, std::vector<int>(kTokens));
    for (int head = 0; head < 2; ++head) {
      std::iota(all[head].begin(), all[head].end(), 0);
      std::mt19937 random(kSeed + head);
      std::shuffle(all[head].begin(), all[head].end(), random);
    }
    return all;
  }();
  return levels[kv_head][token];
}

// Scores are level * kStep times a factor that grows with the head's index in its group.
inline double head_factor(int head) {
  return 1 + 0.1 * (head % kGroup);
}

inline std::vector<float> values_of(int /*layer*/, int head, int kind, int token) {
  std::vector<float> row(kSize, 0.0F);
  if (kind == kValueRows) return token_values(0, head, kind, token, kSize);
  for (int bit = 0; bit < kBits; ++bit) {
    row[bit] = kind == kKeyRows ? static_cast<float>(level(head, token) >> bit & 1)
                                : static_cast<float>(kStep * (1 << bit) * head_factor(head) / 0.25);
  }
  if (kind == kKeyRows) row[kOutlier] = level(head, token) > kTokens - 40 ? 1000.0F : 1.0F;
  return row;
}

inline Geometry geometry() {
  Geometry g = small_geometry(kSize, 2 * kGroup, 2, 1);
  g.softmax_scale = 0.25F;
  return g;
}

// Returns the softmax weights of a query over tokens 0 .. query. The tokens in `gone` get 0.
inline std::vector<double> weights_of(int kv_head, int head, int query, const std::set<int>& gone) {
  std::vector<double> scores(query + 1);
  for (int t = 0; t <= query; ++t) {
    scores[t] = gone.contains(t) ? -1e30 : level(kv_head, t) * kStep * head_factor(head);
  }
  return softmax_in_double(scores);
}

// Computes a token's vertical score. The score sums the weights that the last 64 queries of each page gave to
// the token. The sum is divided by the number of queries that could see the token. The heads of a group are
// summed.
class VerticalScores {
 public:
  explicit VerticalScores(int kv_head) : kv_head_(kv_head), weights_(kTokens, 0.0), observers_(kTokens, 0) {}

  // Adds the observing queries of the page that ends at `end`. A query sees all tokens up to its own except
  // `gone`.
  void end_page(int end, const std::set<int>& gone = {}) {
    for (int query = end - 64; query < end; ++query) {
      for (int h = 0; h < kGroup; ++h) {
        const auto a = weights_of(kv_head_, h, query, gone);
        for (int t = 0; t <= query; ++t) weights_[t] += a[t];
      }
      for (int t = 0; t <= query; ++t) ++observers_[t];
    }
  }
  double of(int token) const { return weights_[token] / observers_[token]; }

  // Sorts tokens by descending score. Expects a gap after the first n tokens, because the test is about the
  // choice and not about rounding.
  void sort(std::vector<int>& tokens, int n) const {
    std::sort(tokens.begin(), tokens.end(), [&](int a, int b) { return of(a) > of(b); });
    if (n == 0 || n >= static_cast<int>(tokens.size())) return;
    EXPECT_GT(of(tokens[n - 1]), 1.003 * of(tokens[n])) << "choose other values";
  }

 private:
  int kv_head_;
  std::vector<double> weights_;
  std::vector<int> observers_;
};

}  // namespace kvant::testing::graded
