// How much of the attention falls on the tokens that a recipe leaves unquantized (VQuant section 2.1, Table
// 1).
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention.h"
#include "format/page_view.h"

namespace kvant {

// Softmax weights summed over queries and query heads; a share is a sum over `rows`.
struct MassCoverage {
  double unsealed = 0;  // on tokens not sealed yet: the window, the page that is being filled, the query
  double protected_mass = 0;  // on sealed tokens that are protected, the sink among them
  std::int64_t rows = 0;      // queries times query heads

  void add(const MassCoverage& other) {
    unsealed += other.unsealed;
    protected_mass += other.protected_mass;
    rows += other.rows;
  }
};

// What a cache keeps unquantized of one head.
struct UnquantizedTokens {
  int first_unsealed = 0;             // this token and all after it
  std::vector<int> protected_tokens;  // before it
};

// The mass that queries put on `tokens` of an unquantized cache, whose pages hold all that they see. q: the
// layer's queries, as in LayerRows, from token `first_token` on.
MassCoverage measure_coverage(const Plan& plan, int layer, int kv_head, const MatrixView<const float>& q,
                              int first_token, const std::vector<PageView>& pages,
                              const UnquantizedTokens& tokens);

}  // namespace kvant
