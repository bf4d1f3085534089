// Keeps the queries of a page that observe, and makes a tile of them when the page ends (token_weights.h).
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "cache/token_scores.h"
#include "device/cpu/kernels/token_weights.h"

namespace kvant {

// Keeps the observers among the rows of a tile, with the rows' LSEs. `rows_of` returns the ObserverRows of a
// token. With integer products, tile.q holds integers, which the function multiplies by tile.q_scale.
// Observers are therefore real numbers.
template <class RowsOf>
void keep_observers(const QueryTile& tile, std::span<const float> lse, int head_dim, const RowsOf& rows_of) {
  for (int r = 0; r < tile.rows(); ++r) {
    const int token = tile.token(r);
    if (observer_row(token) < 0) continue;
    ObserverRows& to = rows_of(token);
    const std::ptrdiff_t row = std::ptrdiff_t{1} * observer_row(token) * tile.group + r / tile.n_queries;
    const float scale = tile.q_scale.empty() ? 1.0F : tile.q_scale[r];
    const float* q = tile.q.data() + static_cast<std::ptrdiff_t>(r) * head_dim;
    std::transform(q, q + head_dim, to.q.begin() + row * head_dim, [&](float x) { return x * scale; });
    to.offset[row] = tile.offset.empty() ? 0.0F : tile.offset[r];
    to.lse[row] = lse[r];
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

}  // namespace kvant
