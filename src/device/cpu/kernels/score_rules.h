// What scores and weights obey besides the products: offsets, soft caps, masks, and what is skipped.
#pragma once

#include "base/matrix_view.h"
#include "device/cpu/kernels/skip_count.h"
#include "device/cpu/kernels/tile.h"
#include "format/page_view.h"

namespace kvant {

// Scores of row r of the tile, [page.n_tokens]: adds the row's offset, caps them, and sets to -inf what its
// query does not see and what is masked.
void apply_rules(const QueryTile& tile, const PageView& page, const AttentionRules& rules, int r,
                 float* scores);

// Zeroes the weights of tokens that the rule skips, query by query across the heads of the group. weights:
// [tile.rows(), page.n_tokens], exp(score - the rule's total max). Returns whether V of any token is left to
// read.
bool skip_tokens(const QueryTile& tile, const PageView& page, const AttentionRules& rules,
                 const SkipRule& rule, MatrixView<float> weights, SkipCount& count);

}  // namespace kvant
