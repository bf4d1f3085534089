#include "cache/testing/host_seal.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <vector>

#include "cache/testing/host_rows.h"
#include "format/error_metric.h"

namespace kvant::testing::host {
namespace {

// Of a head's keys in a page, by its definition; null where the head has none.
std::unique_ptr<ErrorMetric> metric_of(const kvant_page_metrics& all, int d, int head, int page) {
  const float* w = all.directions + std::ptrdiff_t{1} * head * d * kMetricRank;
  const float* basis = all.basis + head * all.basis_head_stride;
  if (std::isnan(w[0])) return nullptr;
  std::vector<float> directions(std::size_t{1} * d * kMetricRank);
  const int middle = page * kPageTokens + kPageTokens / 2;
  for (int r = 0; r < kMetricRank; ++r) {
    std::vector<double> turned(d), behind(d);
    for (int i = 0; i < d; ++i) {
      const double angle = 2 * std::numbers::pi * all.turns[2 * i + 1] * middle;
      const int partner = static_cast<int>(all.turns[2 * i]);
      turned[i] = w[i * kMetricRank + r] * std::cos(angle) - w[partner * kMetricRank + r] * std::sin(angle);
    }
    for (int i = 0; i < d; ++i)
      for (int j = 0; j < d; ++j) behind[j] += turned[i] * basis[i * d + j];
    for (int i = 0; i < d; ++i) directions[i * kMetricRank + r] = static_cast<float>(behind[i]);
  }
  return std::make_unique<ErrorMetric>(directions);
}
// Which page of its sequence the nth one that is sealed is.
int place_of(const kvant_seal_range& range, int seq, int nth) {
  const std::int32_t* first = range.page_metrics->first_pages;
  return (first == nullptr ? range.sealed_page : first)[seq] + nth;
}

// The nth page of a sequence that was just sealed. Its rows are [kPageTokens][d].
void add_to_state(const kvant_correction& c, int seq, int head, int nth, int d, int sink,
                  const std::vector<float>& keys, const std::vector<float>& sealed_keys,
                  const std::vector<float>& sealed_values) {
  float* to = state(c, seq, head) + (nth + 1) * c.state_page_stride;
  if (c.state_page_stride != 0)
    std::copy_n(to - c.state_page_stride, 2 * kHalfFeatures * (std::ptrdiff_t{1} + d), to);
  std::vector<float> lost(d);
  for (int t = sink; t < kPageTokens; ++t) {
    const std::ptrdiff_t row = std::ptrdiff_t{1} * t * d;
    for (int i = 0; i < d; ++i) lost[i] = keys[row + i] - sealed_keys[row + i];
    const auto phi = features(c.key_maps + std::ptrdiff_t{2} * head * d * kHalfFeatures, lost.data(), d);
    for (int f = 0; f < 2 * kHalfFeatures; ++f) {
      for (int i = 0; i < d; ++i) to[f * d + i] += static_cast<float>(phi[f] * sealed_values[row + i]);
      to[2 * kHalfFeatures * d + f] += static_cast<float>(phi[f]);
    }
  }
}

}  // namespace

kvant_status seal_pages(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                        const kvant_seal_range* range, kvant_stream) {
  const int d = shape->head_dim;
  std::vector<float> values(std::size_t{kPageTokens} * d);
  for (int seq = 0; seq < shape->n_seqs; ++seq) {
    if (range->tail_page[seq] < 0) continue;
    const int n = range->n_pages == nullptr ? range->max_pages : range->n_pages[seq];
    for (int p = 0; p < n; ++p) {
      const int sealed = range->sealed_page[seq] + p;
      for (int head = 0; head < shape->n_kv_heads; ++head) {
        const TokenMask left_out = masked(*layer, seq, head, sealed);
        std::vector<float> keys, decoded[2];
        for (int side = 0; side < 2; ++side) {
          const std::byte* tail =
              address(layer->tail, seq, layer->layer, head, side, range->tail_page[seq] + p);
          for (int t = 0; t < kPageTokens; ++t) read_row(tail, d, t, &values[std::size_t{1} * t * d]);
          const SideContext context(*shape, *layer, head, side);
          PageContext of_page = context.context();
          const auto metric = side == KVANT_KEY && range->page_metrics != nullptr
                                  ? metric_of(*range->page_metrics, d, head, place_of(*range, seq, p))
                                  : nullptr;
          of_page.metric = metric.get();
          format_of(*shape, head, side)
              .encode(values.data(), left_out, of_page, sealed_address(*layer, seq, head, side, sealed));
          if (layer->correction == nullptr) continue;
          if (side == KVANT_KEY) keys = values;
          decoded[side].resize(values.size());
          format_of(*shape, head, side)
              .decode(sealed_address(*layer, seq, head, side, sealed), kPageTokens,
                      SideContext(*shape, *layer, head, side).context(), decoded[side].data());
        }
        if (layer->correction != nullptr)
          add_to_state(*layer->correction, seq, head, p, d, sealed == 0 ? layer->sink : 0, keys, decoded[0],
                       decoded[1]);
      }
    }
  }
  return KVANT_OK;
}

kvant_status protect(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                     const kvant_protected_rows* rows, kvant_stream) {
  const std::size_t row_bytes = std::size_t{2} * shape->head_dim;
  for (int i = 0; i < rows->n_rows; ++i) {
    for (int side = 0; side < 2; ++side) {
      const auto at = [&](const kvant_pages& pages, int token) {
        return address(pages, rows->seq[i], layer->layer, rows->head[i], side, token / kPageTokens) +
               token % kPageTokens * row_bytes;
      };
      std::memcpy(at(layer->protected_pages, rows->protected_token[i]), at(layer->tail, rows->tail_token[i]),
                  row_bytes);
    }
  }
  return KVANT_OK;
}

}  // namespace kvant::testing::host
