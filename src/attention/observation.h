// Computes how much weight the kept queries of a page give to each token, as VQuant's vertical scores need
// (VQuant section 5).
#pragma once

#include <span>

#include "cache/token_scores.h"
#include "device/cpu/kernels/tile_attention.h"

namespace kvant {

// Hands the rows of a tile to `observers`, with the statistics of their finished softmax. Rows of tile.q are
// real numbers; with integer products the function multiplies them by tile.q_scale.
void observe_queries(const QueryTile& tile, const PartialAttention& total, int head_dim,
                     Observers& observers);

// Returns the observers of the page that has just ended, as a tile.
QueryTile observer_tile(const Observers& observers, int group);

// Adds to weights[t], for each token t of `pages`, the sum of its softmax weights over `observers`, whose
// tile is `queries`. `rules` are the layer's, with real products. Different threads may weigh different runs
// of pages at the same time.
void weigh_tokens(const QueryTile& queries, const Observers& observers, std::span<const PageView> pages,
                  const AttentionRules& rules, TileScratch& scratch, std::span<double> weights);

}  // namespace kvant
