// Makes a tile of the queries of a step and one KV head.
#pragma once

#include "base/matrix_view.h"
#include "device/cpu/kernels/tile.h"
#include "recipe/plan.h"

namespace kvant {

// Fills q, offset and group of `tile`, whose first_token and n_queries select the queries. The tile holds the
// queries of the group of `kv_head`, transformed and multiplied by the softmax scale. q is [n_rows, n_heads *
// head_dim], as in LayerRows. The tile's first query is row `first_row` of q.
void fill_query_tile(const Plan& plan, int layer, int kv_head, const MatrixView<const float>& q,
                     int first_row, QueryTile& tile);

}  // namespace kvant
