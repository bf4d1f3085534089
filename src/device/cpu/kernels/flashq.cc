#include "device/cpu/kernels/flashq.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/gemm.h"
#include "base/softmax.h"
#include "device/cpu/kernels/score_rules.h"

namespace kvant {
namespace {

// Rounds weights times the scales of their values. Returns the factor that turns the numbers back into
// products.
float round_weights(float* weights, const float* scales, int n) {
  float largest = 0;
  for (int t = 0; t < n; ++t) largest = std::max(largest, weights[t] *= scales[t]);
  if (largest == 0) return 0;
  for (int t = 0; t < n; ++t) weights[t] = std::nearbyint(weights[t] * (kByteWeightMax / largest));
  return largest / kByteWeightMax;
}

}  // namespace

void round_rows_to_bytes(float* rows, int n, int d, float* scales) {
  for (int i = 0; i < n; ++i) {
    float* row = rows + static_cast<std::ptrdiff_t>(i) * d;
    float largest = 0;
    for (int c = 0; c < d; ++c) largest = std::max(largest, std::abs(row[c]));
    scales[i] = largest == 0 ? 1.0F : largest / kByteNumberMax;
    const float inverse = 1 / scales[i];
    for (int c = 0; c < d; ++c) row[c] = std::nearbyint(row[c] * inverse);
  }
}

void attend_in_bytes(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                     TileScratch& scratch, PartialAttention& partial) {
  const int d = rules.head_dim, rows = tile.rows();
  std::vector<float> q = tile.q, q_scales(rows);
  round_rows_to_bytes(q.data(), rows, d, q_scales.data());
  scratch.page.resize(static_cast<std::size_t>(kPageTokens) * d);
  scratch.scores.resize(static_cast<std::size_t>(rows) * kPageTokens);
  scratch.products.resize(static_cast<std::size_t>(rows) * d);
  std::array<float, kPageTokens> scales;
  std::vector<float> factors(rows);
  for (const PageView& page : pages) {
    const int n = page.n_tokens;
    const auto round_side = [&](const PageSide& side) {
      side.format->decode(side.bytes, n, *side.context, scratch.page.data());
      round_rows_to_bytes(scratch.page.data(), n, d, scales.data());
    };
    round_side(page.k);
    gemm(rows, n, d, row_major(q.data(), d), transposed(scratch.page.data(), d), /*accumulate=*/false,
         scratch.scores.data(), kPageTokens);
    for (int r = 0; r < rows; ++r) {
      float* scores = scratch.scores.data() + static_cast<std::ptrdiff_t>(r) * kPageTokens;
      for (int t = 0; t < n; ++t) scores[t] *= q_scales[r] * scales[t];
      apply_rules(tile, page, rules, r, scores);
      weigh_row(r, n, rules, scores, partial);
    }
    round_side(page.v);
    for (int r = 0; r < rows; ++r)
      factors[r] = round_weights(scratch.scores.data() + static_cast<std::ptrdiff_t>(r) * kPageTokens,
                                 scales.data(), n);
    gemm(rows, d, n, row_major(scratch.scores.data(), kPageTokens), row_major(scratch.page.data(), d),
         /*accumulate=*/false, scratch.products.data(), d);
    for (int r = 0; r < rows; ++r) {
      add_scaled_row(partial.accumulator.data() + static_cast<std::ptrdiff_t>(r) * d,
                     scratch.products.data() + static_cast<std::ptrdiff_t>(r) * d, d, factors[r]);
    }
  }
}

}  // namespace kvant
