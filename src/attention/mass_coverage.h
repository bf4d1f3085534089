// Measures how much of the attention falls on tokens that a recipe leaves unquantized (VQuant section 2.1,
// Table 1).
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention.h"
#include "format/page_view.h"

namespace kvant {

// Holds softmax weights that are summed over queries and query heads. A sum divided by `rows` is a share.
struct MassCoverage {
  double unsealed = 0;        // on unsealed tokens: the window, the open page, the query itself
  double protected_mass = 0;  // on protected sealed tokens, including the sink
  std::int64_t rows = 0;      // queries times query heads

  void add(const MassCoverage& other) {
    unsealed += other.unsealed;
    protected_mass += other.protected_mass;
    rows += other.rows;
  }
};

// Names the tokens of one head that a cache keeps unquantized.
struct UnquantizedTokens {
  int first_unsealed = 0;             // This token and all later tokens are unsealed.
  std::vector<int> protected_tokens;  // protected tokens before first_unsealed
};

// Measures the mass that queries put on `tokens` of an unquantized cache, whose pages hold everything that
// the queries see. `q` holds the layer's queries, as in LayerRows, from token `first_token` on.
MassCoverage measure_coverage(const Plan& plan, int layer, int kv_head, const MatrixView<const float>& q,
                              int first_token, const std::vector<PageView>& pages,
                              const UnquantizedTokens& tokens);

}  // namespace kvant
