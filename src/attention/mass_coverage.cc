#include "attention/mass_coverage.h"

#include <cmath>

#include "attention/query_tile.h"
#include "device/cpu/kernels/tile.h"
#include "device/cpu/kernels/tile_attention.h"

namespace kvant {
MassCoverage measure_coverage(const Plan& plan, int layer, int kv_head, const MatrixView<const float>& q,
                              int first_token, const std::vector<PageView>& pages,
                              const UnquantizedTokens& tokens) {
  QueryTile tile;
  tile.first_token = first_token;
  tile.n_queries = q.rows;
  fill_query_tile(plan, layer, kv_head, q, /*first_row=*/0, tile);
  const AttentionRules rules{plan.geometry.dim(layer), plan.layers[layer].sliding_window,
                             plan.geometry.score_softcap};
  TileScratch scratch;
  PartialAttention total;
  total.reset(tile.rows(), rules.head_dim);
  weigh_pages(tile, pages, rules, scratch, total);

  std::vector<bool> protected_set(tokens.first_unsealed, false);
  for (const int token : tokens.protected_tokens) protected_set[token] = true;
  MassCoverage coverage;
  coverage.rows = tile.rows();
  for (const PageView& page : pages) {
    score_page(tile, page, rules, scratch);
    for (int r = 0; r < tile.rows(); ++r) {
      const float* scores = scratch.scores.data() + static_cast<std::ptrdiff_t>(r) * kPageTokens;
      for (int t = 0; t < page.n_tokens; ++t) {
        const int token = page.is_protected ? page.protected_tokens[t] : page.first_token + t;
        const double weight = std::exp(static_cast<double>(scores[t]) - total.max[r]) / total.sum[r];
        if (token >= tokens.first_unsealed) {
          coverage.unsealed += weight;
        } else if (protected_set[token]) {
          coverage.protected_mass += weight;
        }
      }
    }
  }
  return coverage;
}

}  // namespace kvant
