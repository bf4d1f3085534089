#include "device/cpu/kernels/finished_rows.h"

#include <cmath>

#include "base/softmax.h"

namespace kvant {

void add_sink(float sink, int r, int d, PartialAttention& total) {
  if (total.max[r] == kUnseen || sink == kUnseen) return;
  if (sink > total.max[r]) total.raise_max(r, sink, std::exp(total.max[r] - sink), d);
  total.sum[r] += std::exp(sink - total.max[r]);
}

void correct_row(const float* map, const float* q, const float* sums, CorrectionScale scale, int r, int d,
                 CorrectedRow& buffers, PartialAttention& total) {
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

float finish_row(int r, int d, PartialAttention& total) {
  if (total.max[r] == kUnseen) return kUnseen;
  scale_row(total.accumulator.data() + static_cast<std::ptrdiff_t>(r) * d, d, 1 / total.sum[r]);
  return total.max[r] + std::log(total.sum[r]);
}

}  // namespace kvant
