// What one tile of queries is, what it has seen so far, and the rules that it sees by.
#pragma once

#include <limits>
#include <vector>

#include "base/arithmetic.h"

namespace kvant {

// The score of a token that a query does not see, and the maximum where it has seen none.
inline constexpr float kUnseen = -std::numeric_limits<float>::infinity();

// The queries of one tile for one KV head: row g * n_queries + i is query head g, token first_token + i.
struct QueryTile {
  int first_token = 0;
  int n_queries = 0;
  int group = 0;               // G
  std::vector<float> q;        // [group * n_queries, d]: transformed, times the softmax scale
  std::vector<float> q_scale;  // [group * n_queries]: with integer products, q holds integers times this
  std::vector<float> offset;   // [group * n_queries]: added to every score; empty: none
  int rows() const { return group * n_queries; }
  int token(int row) const { return first_token + row % n_queries; }
};

// The weights of a tile's rows over the tokens of some pages.
struct RunWeights {
  std::vector<float> weights;  // [rows, tokens of the pages]: exp(s - max)
  std::vector<float> max;      // [rows]; -inf: nothing seen
  std::vector<float> sum;      // [rows]: of the weights
};

// Unnormalized outputs of some pages: output row r is accumulator / sum, and the weights are exp(s - max).
struct PartialAttention {
  std::vector<float> max;          // [rows]; -inf: nothing seen
  std::vector<float> sum;          // [rows]
  std::vector<float> accumulator;  // [rows, d]

  RunWeights kept;  // what a backend may keep from the first of two passes: reset() leaves it alone

  void reset(int rows, int d);
  // Row r's maximum becomes `to`, a larger one: what was seen before shrinks by `rescale`.
  void raise_max(int r, float to, float rescale, int d);
  // Adds the pages that `other` saw. Same rows and d.
  void merge(const PartialAttention& other, int d);
};

// What a layer's scores and weights obey.
struct AttentionRules {
  int head_dim = 0;
  int sliding_window = 0;  // a token is seen by a query at or after it, within this many tokens; 0: any
  float softcap = 0;       // > 0: scores become softcap * tanh(score / softcap) (Gemma 2)
  Softmax softmax = Softmax::exact;
  Products products = Products::real;
  bool in_bytes = false;  // q, K, V and weights are rounded to 8 bits (flashq.h)
};

// The final statistics of a tile's rows, and what is skipped in their light: V of a token where the weight
// exp(s - max) / sum is below tau for every head of the group.
struct SkipRule {
  double tau = 0;
  const PartialAttention* total = nullptr;
};

}  // namespace kvant
