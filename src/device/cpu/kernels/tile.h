// Defines a tile of queries, what the tile has seen so far, and the rules of its attention.
#pragma once

#include <limits>
#include <vector>

#include "base/arithmetic.h"

namespace kvant {

// kUnseen is the score of a token that a query does not see, and the maximum of a query that has seen no
// token.
inline constexpr float kUnseen = -std::numeric_limits<float>::infinity();

// Holds the queries of one tile for one KV head. Row g * n_queries + i is query head g, token first_token +
// i.
struct QueryTile {
  int first_token = 0;
  int n_queries = 0;
  int group = 0;         // G
  std::vector<float> q;  // [group * n_queries, d]: transformed, times the softmax scale
  std::vector<float>
      q_scale;  // [group * n_queries]: the scales of q, which holds integers if products are integer
  std::vector<float> offset;  // [group * n_queries]: added to every score; empty for 0
  int rows() const { return group * n_queries; }
  int token(int row) const { return first_token + row % n_queries; }
};

// Holds the weights of a tile's rows over the tokens of some pages.
struct RunWeights {
  std::vector<float> weights;  // [rows, tokens of the pages]: exp(s - max)
  std::vector<float> max;      // [rows]; -inf if a row has seen nothing
  std::vector<float> sum;      // [rows]: sums of the weights
};

// Holds unnormalized outputs over some pages. Output row r is accumulator / sum, and the weights are exp(s -
// max).
struct PartialAttention {
  std::vector<float> max;          // [rows]; -inf if a row has seen nothing
  std::vector<float> sum;          // [rows]
  std::vector<float> accumulator;  // [rows, d]

  RunWeights
      kept;  // Weights that a backend may keep from the first of two passes. reset() does not clear them.

  void reset(int rows, int d);
  // Raises row r's maximum to `to`, and multiplies the earlier sum and outputs by `rescale`.
  void raise_max(int r, float to, float rescale, int d);
  // Adds the pages that `other` has seen. Both must have equal rows and d.
  void merge(const PartialAttention& other, int d);
};

// Holds the rules of a layer's scores and weights.
struct AttentionRules {
  int head_dim = 0;
  int sliding_window = 0;  // tokens that a query sees, including its own; 0 for all
  float softcap = 0;       // If > 0, scores become softcap * tanh(score / softcap) (Gemma 2).
  Softmax softmax = Softmax::exact;
  Products products = Products::real;
  bool in_bytes = false;  // q, K, V and weights are rounded to 8 bits (flashq.h).
};

// Holds the final statistics of a tile's rows, and the threshold for skipping. V of a token is skipped if
// exp(s - max) / sum is below tau for every head of the group.
struct SkipRule {
  double tau = 0;
  const PartialAttention* total = nullptr;
};

}  // namespace kvant
