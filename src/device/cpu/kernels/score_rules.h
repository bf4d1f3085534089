// Applies the rules of a layer that come on top of products: offsets, soft caps, masks, and skipped values.
#pragma once

#include "base/matrix_view.h"
#include "device/cpu/kernels/skip_count.h"
#include "device/cpu/kernels/tile.h"
#include "format/page_view.h"

namespace kvant {

// Applies the rules to the scores of row r of the tile, [page.n_tokens]. The call adds the row's offset and
// caps the scores. Masked tokens, and tokens that the query does not see, get -inf.
void apply_rules(const QueryTile& tile, const PageView& page, const AttentionRules& rules, int r,
                 float* scores);

// Sets the weights of skipped tokens to 0, query by query across the heads of the group. `weights` is
// [tile.rows(), page.n_tokens] and holds exp(score - the rule's total max). Returns whether V of any token
// must still be read.
bool skip_tokens(const QueryTile& tile, const PageView& page, const AttentionRules& rules,
                 const SkipRule& rule, MatrixView<float> weights, SkipCount& count);

}  // namespace kvant
