#include "device/cpu/partial_rows.h"

#include <cmath>

#include "base/softmax.h"
#include "device/cpu/rows.h"

namespace kvant::device::cpu {

void add_sink(float sink, int r, int d, PartialAttention& total) {
  if (total.max[r] == kUnseen || sink == kUnseen) return;
  if (sink > total.max[r]) total.raise_max(r, sink, std::exp(total.max[r] - sink), d);
  total.sum[r] += std::exp(sink - total.max[r]);
}

void correct_row(const kvant_correction& c, const float* sums, int query_head, const float* q, int r, int d,
                 PartialAttention& total) {
  if (total.max[r] == kUnseen) return;
  constexpr int kFeatures = 2 * kHalfFeatures;
  const std::vector<double> phi =
      features(c.query_maps + std::ptrdiff_t{1} * query_head * d * kFeatures, q, d);
  float factor = 1;
  if (c.absolute != 0) {
    if (total.max[r] < 0) total.raise_max(r, 0, std::exp(total.max[r]), d);
    factor = std::exp(-total.max[r]);
  }
  float* const accumulator = total.accumulator.data() + static_cast<std::ptrdiff_t>(r) * d;
  for (int f = 0; f < kFeatures; ++f) {
    const float weight = factor * static_cast<float>(phi[f]);
    add_scaled_row(accumulator, sums + static_cast<std::ptrdiff_t>(f) * d, d, weight);
    total.sum[r] += weight * sums[kFeatures * d + f];
  }
}

float finish_row(int r, int d, PartialAttention& total) {
  if (total.max[r] == kUnseen) return kUnseen;
  kvant::scale_row(total.accumulator.data() + static_cast<std::ptrdiff_t>(r) * d, d, 1 / total.sum[r]);
  return total.max[r] + std::log(total.sum[r]);
}

}  // namespace kvant::device::cpu
