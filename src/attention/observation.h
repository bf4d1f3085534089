// Computes how much weight the kept queries of a page give to each token, as VQuant's vertical scores need
// (VQuant section 5).
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "cache/token_scores.h"
#include "device/cpu/kernels/tile_attention.h"

namespace kvant {

// Holds the observers of a page that has just ended. Without such a page, the tile has no rows.
struct ObserverTile {
  QueryTile queries;
  std::vector<float> lse;  // by row of the tile
};

// Keeps the observers among the rows of a tile, with the statistics of their finished softmax. `rows_of`
// returns the ObserverRows of a token. Rows of tile.q are real numbers; with integer products the function
// multiplies them by tile.q_scale.
template <class RowsOf>
void keep_observers(const QueryTile& tile, const PartialAttention& total, int head_dim,
                    const RowsOf& rows_of) {
  for (int r = 0; r < tile.rows(); ++r) {
    const int token = tile.token(r);
    if (observer_row(token) < 0) continue;
    ObserverRows& to = rows_of(token);
    const std::ptrdiff_t row = std::ptrdiff_t{1} * observer_row(token) * tile.group + r / tile.n_queries;
    const float scale = tile.q_scale.empty() ? 1.0F : tile.q_scale[r];
    const float* q = tile.q.data() + static_cast<std::ptrdiff_t>(r) * head_dim;
    std::transform(q, q + head_dim, to.q.begin() + row * head_dim, [&](float x) { return x * scale; });
    to.offset[row] = tile.offset.empty() ? 0.0F : tile.offset[r];
    to.lse[row] = total.max[r] + std::log(total.sum[r]);
  }
}

// Makes a tile of the observers of the tokens [first, end), where a page ends. `rows_of` returns the
// ObserverRows of a token.
template <class RowsOf>
void list_observers(int first, int end, int group, int head_dim, const RowsOf& rows_of, ObserverTile& tile) {
  tile.queries.first_token = first;
  tile.queries.n_queries = end - first;
  tile.queries.group = group;
  tile.queries.q.resize(static_cast<std::size_t>(tile.queries.rows()) * head_dim);
  tile.queries.offset.resize(tile.queries.rows());
  tile.lse.resize(tile.queries.rows());
  for (int r = 0; r < tile.queries.rows(); ++r) {
    const int token = tile.queries.token(r);
    const ObserverRows& from = rows_of(token);
    const std::ptrdiff_t row = std::ptrdiff_t{1} * observer_row(token) * group + r / tile.queries.n_queries;
    std::copy_n(from.q.begin() + row * head_dim, head_dim,
                tile.queries.q.begin() + static_cast<std::ptrdiff_t>(r) * head_dim);
    tile.queries.offset[r] = from.offset[row];
    tile.lse[r] = from.lse[row];
  }
}

// Adds to weights[t], for each token t of `pages`, the sum of its softmax weights over `observers`. `rules`
// are the layer's, with real products. Different threads may weigh different runs of pages at the same time.
void weigh_tokens(const ObserverTile& observers, std::span<const PageView> pages, const AttentionRules& rules,
                  TileScratch& scratch, std::span<double> weights);

}  // namespace kvant
