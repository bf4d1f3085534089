#include "attention/tile.h"

#include <algorithm>
#include <cmath>

#include "attention/softmax.h"

namespace kvant {

void PartialAttention::reset(int rows, int d) {
  max.assign(rows, kUnseen);
  sum.assign(rows, 0.0F);
  accumulator.assign(static_cast<std::size_t>(rows) * d, 0.0F);
}

void PartialAttention::raise_max(int r, float to, float rescale, int d) {
  sum[r] *= rescale;
  scale_row(accumulator.data() + static_cast<std::ptrdiff_t>(r) * d, d, rescale);
  max[r] = to;
}

void PartialAttention::merge(const PartialAttention& other, int d) {
  for (std::size_t r = 0; r < max.size(); ++r) {
    if (other.max[r] == kUnseen) continue;
    const float together = std::max(max[r], other.max[r]);
    const float mine = std::exp(max[r] - together), theirs = std::exp(other.max[r] - together);
    float* row = accumulator.data() + static_cast<std::ptrdiff_t>(r) * d;
    scale_row(row, d, mine);
    add_scaled_row(row, other.accumulator.data() + static_cast<std::ptrdiff_t>(r) * d, d, theirs);
    sum[r] = sum[r] * mine + other.sum[r] * theirs;
    max[r] = together;
  }
}

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
