#include "attention/observation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "format/affine_row.h"

namespace kvant {

void observe_queries(const QueryTile& tile, const PartialAttention& total, int head_dim,
                     Observers& observers) {
  std::array<float, kMaxHeadDim> values;
  const std::span<float> q(values.data(), head_dim);
  for (int i = 0; i < tile.n_queries; ++i) {  // Rows come by ascending token, then by head.
    for (int g = 0; g < tile.group; ++g) {
      const int r = g * tile.n_queries + i;
      const float scale = tile.q_scale.empty() ? 1.0F : tile.q_scale[r];
      const float* row = tile.q.data() + static_cast<std::ptrdiff_t>(r) * head_dim;
      std::transform(row, row + head_dim, q.begin(), [&](float x) { return x * scale; });
      const float offset = tile.offset.empty() ? 0.0F : tile.offset[r];
      observers.observe({tile.token(r), q, offset, total.max[r], total.sum[r]}, tile.group);
    }
  }
}

QueryTile observer_tile(const Observers& observers, int group) {
  const MatrixView<const float> q = observers.queries();
  QueryTile tile;
  tile.first_token = observers.tokens().front();
  tile.n_queries = q.rows / group;
  tile.group = group;
  tile.q.resize(static_cast<std::size_t>(q.rows) * q.cols);
  tile.offset.resize(q.rows);
  for (int r = 0; r < tile.rows(); ++r) {
    const int row = r % tile.n_queries * group + r / tile.n_queries;
    const float* from = q.row(row);
    tile.offset[r] = observers.offsets()[row];
    std::copy(from, from + q.cols, tile.q.data() + static_cast<std::ptrdiff_t>(r) * q.cols);
  }
  return tile;
}

void weigh_tokens(const QueryTile& queries, const Observers& observers, std::span<const PageView> pages,
                  const AttentionRules& rules, TileScratch& scratch, std::span<double> weights) {
  for (const PageView& page : pages) {
    score_page(queries, page, rules, scratch);
    for (int r = 0; r < queries.rows(); ++r) {
      const int row = r % queries.n_queries * queries.group + r / queries.n_queries;
      const float max = observers.maxima()[row], sum = observers.sums()[row];
      const float* s = scratch.scores.data() + static_cast<std::ptrdiff_t>(r) * kPageTokens;
      for (int t = 0; t < page.n_tokens; ++t) {
        const double weight = std::exp(static_cast<double>(s[t]) - max) / sum;
        // A token that is masked here is a protected row, which another thread may be weighing. Adding 0
        // would be a data race.
        if (weight > 0)
          weights[page.is_protected ? page.protected_tokens[t] : page.first_token + t] += weight;
      }
    }
  }
}

}  // namespace kvant
