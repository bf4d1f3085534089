#include "device/cpu/kernels/finished_rows.h"

#include <cmath>

#include "base/softmax.h"

namespace kvant {
namespace {

// Applies KVLinC's correction to row r. `q` is [d], without the softmax scale.
void correct_row(const float* map, const float* q, const float* sums, CorrectionScale scale, int r, int d,
                 FinishedRows& buffers, PartialAttention& total) {
  if (total.max[r] == kUnseen) return;
  buffers.phi.resize(kCorrectionFeatures);
  buffers.correction.resize(d);
  map_features(map, {q, 1, d}, {buffers.phi.data(), 1, kCorrectionFeatures});
  const float mass = multiply_by_sums(sums, buffers.phi.data(), d, buffers.correction.data());
  if (mass == 0) return;  // All sealed tokens are protected.
  float c = 1;
  if (scale == CorrectionScale::absolute) {
    if (total.max[r] < 0) total.raise_max(r, 0, std::exp(total.max[r]), d);
    c = std::exp(-total.max[r]);
  }
  add_scaled_row(total.accumulator.data() + static_cast<std::ptrdiff_t>(r) * d, buffers.correction.data(), d,
                 c);
  total.sum[r] += c * mass;
}

void correct_rows(const QueryTile& tile, int d, const RowEnds& ends, PartialAttention& total,
                  FinishedRows& buffers) {
  buffers.q.resize(d);
  for (int r = 0; r < tile.rows(); ++r) {
    const float* q = tile.q.data() + static_cast<std::ptrdiff_t>(r) * d;
    const float unscale = (tile.q_scale.empty() ? 1.0F : tile.q_scale[r]) / ends.softmax_scale;
    for (int c = 0; c < d; ++c) buffers.q[c] = q[c] * unscale;
    correct_row(ends.query_maps + r / tile.n_queries * feature_map_weights(d), buffers.q.data(),
                ends.sums[r % tile.n_queries], ends.scale, r, d, buffers, total);
  }
}

float finish_row(int r, int d, PartialAttention& total) {
  if (total.max[r] == kUnseen) return kUnseen;
  scale_row(total.accumulator.data() + static_cast<std::ptrdiff_t>(r) * d, d, 1 / total.sum[r]);
  return total.max[r] + std::log(total.sum[r]);
}

}  // namespace

void add_sinks(const QueryTile& tile, const float* sink_logits, int d, PartialAttention& total) {
  for (int r = 0; r < tile.rows() && sink_logits != nullptr; ++r) {
    const float sink = sink_logits[r / tile.n_queries];
    if (total.max[r] == kUnseen || sink == kUnseen) continue;
    if (sink > total.max[r]) total.raise_max(r, sink, std::exp(total.max[r] - sink), d);
    total.sum[r] += std::exp(sink - total.max[r]);
  }
}

void finish_rows(const QueryTile& tile, int d, const RowEnds& ends, PartialAttention& total,
                 FinishedRows& finished) {
  if (!ends.sums.empty()) correct_rows(tile, d, ends, total, finished);
  add_sinks(tile, ends.sink_logits, d, total);
  finished.lse.resize(tile.rows());
  for (int r = 0; r < tile.rows(); ++r) finished.lse[r] = finish_row(r, d, total);
}

}  // namespace kvant
