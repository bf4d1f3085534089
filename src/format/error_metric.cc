#include "format/error_metric.h"

#include <cstddef>

namespace kvant {

ErrorMetric::ErrorMetric(std::span<const float> directions) : steps_(directions.size() / kMetricRank) {
  double k[kMetricRank][kMetricRank] = {};
  for (int a = 0; a < kMetricRank; ++a) k[a][a] = 1;
  for (std::size_t i = steps_.size(); i-- > 0;) {
    const float* v = directions.data() + i * kMetricRank;
    double kv[kMetricRank] = {};
    double weight = 1;
    for (int a = 0; a < kMetricRank; ++a) {
      for (int b = 0; b < kMetricRank; ++b) kv[a] += k[a][b] * v[b];
      weight += kv[a] * v[a];
    }
    steps_[i].weight = static_cast<float>(weight);
    for (int a = 0; a < kMetricRank; ++a) {
      steps_[i].directions[a] = v[a];
      steps_[i].feedback[a] = static_cast<float>(kv[a] / weight);
      for (int b = 0; b < kMetricRank; ++b) k[a][b] -= kv[a] * kv[b] / weight;
    }
  }
}

double ErrorMetric::product(const float* a, const float* b) const {
  double sum = 0;
  double along_a[kMetricRank] = {}, along_b[kMetricRank] = {};
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    sum += static_cast<double>(a[i]) * b[i];
    for (int r = 0; r < kMetricRank; ++r) {
      along_a[r] += static_cast<double>(steps_[i].directions[r]) * a[i];
      along_b[r] += static_cast<double>(steps_[i].directions[r]) * b[i];
    }
  }
  for (int r = 0; r < kMetricRank; ++r) sum += along_a[r] * along_b[r];
  return sum;
}

}  // namespace kvant
