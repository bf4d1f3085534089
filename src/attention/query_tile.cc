#include "attention/query_tile.h"

#include <algorithm>

namespace kvant {

void fill_query_tile(const Plan& plan, int layer, int kv_head, const MatrixView<const float>& q,
                     int first_row, QueryTile& tile) {
  const int d = plan.geometry.dim(layer);
  tile.group = plan.geometry.group(layer);
  tile.q.resize(static_cast<std::size_t>(tile.rows()) * d);
  for (int r = 0; r < tile.rows(); ++r) {
    const int head = kv_head * tile.group + r / tile.n_queries;
    const float* in = q.row(first_row + r % tile.n_queries) + head * d;
    std::transform(in, in + d, tile.q.data() + static_cast<std::ptrdiff_t>(r) * d,
                   [&](float x) { return x * plan.geometry.softmax_scale; });
  }
  tile.offset.resize(plan.layers[layer].needs_offset ? tile.rows() : 0);
  plan.head(layer, kv_head)
      .k.transform.query({tile.q.data(), tile.rows(), d}, tile.offset.empty() ? nullptr : tile.offset.data());
}

}  // namespace kvant
