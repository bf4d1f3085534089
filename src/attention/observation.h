// VQuant's observers: how much weight the kept queries of a page give to each token (VQuant section 5).
#pragma once

#include <span>

#include "cache/token_scores.h"
#include "device/cpu/kernels/tile_attention.h"

namespace kvant {

// Hands the rows of a tile to `scores`, with the statistics of their finished softmax. Rows of tile.q are
// real (with integer products: times tile.q_scale).
void observe_queries(const QueryTile& tile, const PartialAttention& total, int head_dim, TokenScores& scores);

// The observers of the page that just ended, as a tile.
QueryTile observer_tile(const TokenScores& scores, int group);

// weights[t] += sum over observers of the softmax weight of each token t of `pages`. rules: of the layer,
// with real products. Different runs of pages may be weighed at the same time.
void weigh_tokens(const QueryTile& observers, const TokenScores& scores, std::span<const PageView> pages,
                  const AttentionRules& rules, TileScratch& scratch, std::span<double> weights);

}  // namespace kvant
